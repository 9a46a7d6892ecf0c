package soft

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/stretchr/testify/require"
)

// onNode describes memory of a NUMA node that can be shared as an fd.
func onNode(node int32) *sys.CUmemAllocationProp {
	p := propOf(0)
	p.Location = sys.CUmemLocation{Type: sys.CU_MEM_LOCATION_TYPE_HOST_NUMA, Id: node}
	return p
}

// hostFiles are the files of host memory.
func hostFiles(t testing.TB) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(os.Getenv(envDir), "gpu64-*"))
	require.NoError(t, err)
	return names
}

// Memory of the host is none of a device, has a limit, and goes with its last
// handle, mapping and fd.
func TestHostMemoryIsAccountedApart(t *testing.T) {
	c := inContext(t, 0)
	free, fds := freeMemory(t, c), openFiles(t)
	const n = 2 * MiB
	var h sys.CUmemGenericAllocationHandle
	ok(t, c.CuMemCreate(&h, n, onNode(0), 0))
	require.Equal(t, free, freeMemory(t, c))
	require.Len(t, hostFiles(t), 1)
	var more sys.CUmemGenericAllocationHandle
	want(t, sys.CUDA_ERROR_OUT_OF_MEMORY, c.CuMemCreate(&more, testMemory, onNode(0), 0))
	want(t, sys.CUDA_ERROR_OUT_OF_MEMORY, c.CuMemCreate(&more, 1<<45, onNode(0), 0))

	f := export(t, h)
	ok(t, c.CuMemRelease(h))
	require.Len(t, hostFiles(t), 1, "the fd keeps it")
	require.NoError(t, f.Close())
	ok(t, c.CuMemCreate(&more, testMemory, onNode(0), 0)) // which looks for room
	require.Len(t, hostFiles(t), 1)
	ok(t, c.CuMemRelease(more))
	require.Empty(t, hostFiles(t))
	require.Equal(t, fds, openFiles(t))
}

// openFiles counts the process's fds.
func openFiles(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

// Pools are of devices only, and rights of the host are to its own memory.
func TestWhatHostMemoryIsNot(t *testing.T) {
	initialised(t)
	props := &sys.CUmemPoolProps{AllocType: sys.CU_MEM_ALLOCATION_TYPE_PINNED, Location: onNode(0).Location}
	want(t, sys.CUDA_ERROR_NOT_SUPPORTED, caller.CuMemPoolCreate(new(sys.CUmemoryPool), props))
	for _, change := range []func(*sys.CUmemAllocationProp){
		func(p *sys.CUmemAllocationProp) { p.Type = 77 },
		func(p *sys.CUmemAllocationProp) { p.Location.Id = 1 },
		func(p *sys.CUmemAllocationProp) { p.Location.Id = -1 },
	} {
		p := onNode(0)
		change(p)
		want(t, sys.CUDA_ERROR_INVALID_VALUE, caller.CuMemCreate(new(sys.CUmemGenericAllocationHandle), 2*MiB, p, 0))
	}

	var h sys.CUmemGenericAllocationHandle
	ok(t, caller.CuMemCreate(&h, 2*MiB, onNode(0), 0))
	t.Cleanup(func() { ok(t, caller.CuMemRelease(h)) })
	p := reserved(t, 4*MiB)
	mapped(t, p, 2*MiB, h)
	mapped(t, p+2*MiB, 2*MiB, create(t, 2*MiB, 0))
	host := &sys.CUmemAccessDesc{Location: onNode(0).Location, Flags: readWrite}
	want(t, sys.CUDA_ERROR_NOT_SUPPORTED, caller.CuMemSetAccess(p, 4*MiB, host, 1))
	ok(t, caller.CuMemSetAccess(p, 2*MiB, host, 1))
	host.Location.Id = 1
	want(t, sys.CUDA_ERROR_INVALID_VALUE, caller.CuMemSetAccess(p, 2*MiB, host, 1))
	ok(t, caller.CuMemSetAccess(p, 4*MiB, accessTo(1, readWrite), 1))
}
