package sock

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A policy that admits who should be refused is noticed by the test of fault 53:
// by the listener's side, which hears of nobody refused, and by the peer's.
//
//fault:rows 53
func TestPlanted_PolicyAdmitsEverybody(t *testing.T) {
	requireNoLeak(t)
	const uid, gid = 12345, 12346
	l := listenAt(t, filepath.Join(safeDir(t), "s"), WithMode(0o666), WithPolicy(Policy{UIDs: []uint32{uid}}))
	cmd := childCommand(t, "dial", l.Path(), "refused")
	asUser(t, cmd, uid, gid)
	said := make(chan string, 1)
	go func() {
		out, _ := cmd.CombinedOutput()
		said <- string(out)
	}()
	conn := accepted(t, l)
	require.NoError(t, conn.Send(soon(t), []byte("welcome")))
	require.NoError(t, conn.WaitClose(soon(t)))
	require.NoError(t, conn.Close())
	require.Contains(t, <-said, `got "welcome", want "refused"`)
	require.False(t, cmd.ProcessState.Success())
}
