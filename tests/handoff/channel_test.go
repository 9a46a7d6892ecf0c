package handoff

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
)

// isolated starts gpufd in namespaces of its own, of users too, with one user in them.
func isolated(s *programs.Scene, args ...string) *programs.Process {
	s.T.Helper()
	in := cutest.Namespaced(s.T, cutest.AsRoot...)
	front, err := exec.LookPath(in[0])
	require.NoError(s.T, err)
	args = append(append(in[1:len(in):len(in)], programs.ProgramPath(s.T, "gpufd")), args...)
	return programs.Start(s.T, "gpufd", front, []string{"GPUFD_DRIVER=" + programs.KindName()}, args...)
}

// A channel between containers: a writer and readers in namespaces of their own, with nothing in
// common but the socket's directory. One reader is killed, and the others miss nothing.
func TestChannelBetweenNamespaces(t *testing.T) {
	programs.Parallel(t)
	cutest.Namespaced(t, cutest.AsRoot...)
	const frame, half = 4096, 50
	s, dir := programs.NewScene(t), t.TempDir()
	w := isolated(s, "channel", "write", "cam", "--socket", s.Socket, "--slots", "4", "--slot-size", "4096", "--readers", "3", "--timeout", "60s")
	var readers []*programs.Process
	out := func(i int) string { return filepath.Join(dir, string(rune('a'+i))) }
	for i := range 3 {
		readers = append(readers, isolated(s, "channel", "read", "cam", "--socket", s.Socket, "--timeout", "60s", "-o", out(i)))
	}
	data := make([]byte, 2*half*frame)
	for i := range data {
		data[i] = byte(i/frame + i%251)
	}
	require.NoError(t, errOf(w.In.Write(data[:half*frame])))
	for i := range readers {
		require.Eventually(t, func() bool {
			info, err := os.Stat(out(i))
			return err == nil && info.Size() == half*frame
		}, programs.Patience, 10*time.Millisecond, "what reader %d got", i)
	}
	readers[0].Kill()
	require.NoError(t, errOf(w.In.Write(data[half*frame:])))
	require.NoError(t, w.In.Close())
	require.Zero(t, w.Wait(), w.Dump())
	for i, r := range readers[1:] {
		require.Zero(t, r.Wait(), r.Dump())
		got := ok(os.ReadFile(out(i + 1)))(t)
		require.True(t, bytes.Equal(data, got), "reader %d has %d bytes of %d, or others", i+1, len(got), len(data))
	}
	require.Contains(t, w.Err.String(), "is gone, after frame ")
}
