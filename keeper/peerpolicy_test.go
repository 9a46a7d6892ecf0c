package keeper

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/sock"
)

// The keeper at a socket belongs to this user, or to the owner of the directory.
func TestKeeperOf(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "socket")
	require.Equal(t, sock.Policy{}, protocol.KeeperOf(socket))
	require.Equal(t, sock.Policy{}, protocol.KeeperOf("/nonexistent/socket"))
	if os.Chown(dir, 1234, 1234) != nil {
		t.Skip("only root gives a directory to another user")
	}
	require.NoError(t, os.Chmod(dir, 0o711))
	require.Equal(t, sock.Policy{UIDs: []uint32{1234}}, protocol.KeeperOf(socket))
	require.NoError(t, os.Chmod(dir, 0o731))
	require.Equal(t, sock.Policy{}, protocol.KeeperOf(socket), "others may have made it")
}

// Readers get a table as it was written, and it takes no more room than that.
func TestTableIsToldAsItIs(t *testing.T) {
	table := `{"a":"` + strings.Repeat("<&>", 1000) + `"}`
	d := Data{Name: "x", Version: 1, Table: json.RawMessage(table)}
	text := ok(d.encode())(t)
	require.Contains(t, string(text), table)
	require.Less(t, len(text), len(table)+200)
	var back Data
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, d, back)

	_, c, dev := kept(t)
	p := part(0, dev, 1)
	p.Table = d.Table
	require.NoError(t, errOf(c.Put(soon(t), Put{Name: "x"}, p)))
	require.Equal(t, table, string(attach(t, c, dev, "x")[0].Data.Table))
}
