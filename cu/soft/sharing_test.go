package soft

import (
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/stretchr/testify/require"
)

// The line from producer to consumer, in one process.
func TestShareOneProcess(t *testing.T) {
	c := inContext(t, 0)
	p, h := buffer(t, 4*MiB, 0)
	data := pattern(4*MiB, 1)
	ok(t, c.CuMemcpyHtoD_v2(p, at(data), 4*MiB))

	f := exported(t, h)
	var h2 sys.CUmemGenericAllocationHandle
	ok(t, caller.CuMemImportFromShareableHandle(&h2, f.Fd(), sys.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
	q := reserved(t, 4*MiB)
	ok(t, caller.CuMemMap(q, 4*MiB, 0, h2, 0))
	ok(t, caller.CuMemSetAccess(q, 4*MiB, accessTo(0, readOnly), 1))
	got := make([]byte, 4*MiB)
	ok(t, c.CuMemcpyDtoH_v2(at(got), q, 4*MiB))
	require.Equal(t, data, got)
	ok(t, caller.CuMemUnmap(q, 4*MiB))
	ok(t, caller.CuMemRelease(h2))
}
