package soft

import (
	"strings"
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/stretchr/testify/require"
)

// UUIDs are the directory's: the same in every process that uses it.
func TestUUIDs(t *testing.T) {
	here := output(t, "uuids")
	uuids := strings.Fields(here)
	require.Len(t, uuids, 2)
	require.NotEqual(t, uuids[0], uuids[1])
	require.Equal(t, here, output(t, "uuids"))
	elsewhere := output(t, "uuids", envDir+"="+t.TempDir()+"/new")
	require.NotContains(t, elsewhere, uuids[0])
	swapped := strings.Fields(output(t, "uuids", envVisible+"="+uuids[1][:20]+","+"0"))
	require.Equal(t, []string{uuids[1], uuids[0]}, swapped)
	u := new(sys.CUuuid)
	ok(t, initialised(t).CuDeviceGetUuid(u, 0))
	require.Equal(t, uuids[0], "GPU-"+uuidText(u.Bytes))
}
