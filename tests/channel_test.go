package tests

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
)

// isolated starts gpufd in namespaces of its own, of users too, with one user in them.
func (s *scene) isolated(args ...string) *process {
	s.t.Helper()
	in := cutest.Namespaced(s.t, cutest.AsRoot...)
	front, err := exec.LookPath(in[0])
	require.NoError(s.t, err)
	args = append(append(in[1:len(in):len(in)], programPath(s.t, "gpufd")), args...)
	return start(s.t, "gpufd", front, []string{"GPUFD_DRIVER=" + kindName()}, args...)
}

// A channel between containers: a writer and readers in namespaces of their own, with nothing in
// common but the socket's directory. One reader is killed, and the others miss nothing.
func TestChannelBetweenNamespaces(t *testing.T) {
	cutest.Namespaced(t, cutest.AsRoot...)
	const frame, half = 4096, 50
	s, dir := newScene(t), t.TempDir()
	w := s.isolated("channel", "write", "cam", "--socket", s.socket, "--slots", "4", "--slot-size", "4096", "--readers", "3", "--timeout", "60s")
	var readers []*process
	out := func(i int) string { return filepath.Join(dir, string(rune('a'+i))) }
	for i := range 3 {
		readers = append(readers, s.isolated("channel", "read", "cam", "--socket", s.socket, "--timeout", "60s", "-o", out(i)))
	}
	data := make([]byte, 2*half*frame)
	for i := range data {
		data[i] = byte(i/frame + i%251)
	}
	_, err := w.in.Write(data[:half*frame])
	require.NoError(t, err)
	for i := range readers {
		require.Eventually(t, func() bool {
			info, err := os.Stat(out(i))
			return err == nil && info.Size() == half*frame
		}, patience, 10*time.Millisecond, "what reader %d got", i)
	}
	readers[0].kill()
	_, err = w.in.Write(data[half*frame:])
	require.NoError(t, err)
	require.NoError(t, w.in.Close())
	require.Zero(t, w.wait(), w.dump())
	for i, r := range readers[1:] {
		require.Zero(t, r.wait(), r.dump())
		got, err := os.ReadFile(out(i + 1))
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, got), "reader %d has %d bytes of %d, or others", i+1, len(got), len(data))
	}
	require.Contains(t, w.err.String(), "is gone, after frame ")
}
