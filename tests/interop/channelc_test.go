package interop

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
)

// channelReader is the reader of channels in C, built once.
var channelReader = sync.OnceValues(func() (string, error) { return cc("channel.c") })

// A channelOfC is a writer of gpufd's and a reader in C, at one socket.
type channelOfC struct {
	t      *testing.T
	writer *exec.Cmd
	feed   io.WriteCloser
	reader *exec.Cmd
	out    io.Reader    // of the reader
	err    bytes.Buffer // of the reader
	told   bytes.Buffer // by the writer, of errors
}

// newChannelOfC starts both.
func newChannelOfC(t *testing.T, policy, slots string) *channelOfC {
	t.Helper()
	programs.NeedCC(t)
	file := ok(channelReader())(t)
	dir, err := os.MkdirTemp(programs.ShortTempDir(), "gpufd-") // not a scene: who is killed leaves its socket
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	c, path := &channelOfC{t: t}, filepath.Join(dir, "s")
	gpufd := programs.ProgramPath(t, "gpufd")
	c.reader = exec.Command(file, "-socket", path, "-name", "cam", "-policy", policy, "-timeout", "60")
	c.writer = exec.Command(gpufd, "channel", "write", "cam", "--socket", path, "--slots", slots, "--slot-size", "4099", "--timeout", "60s")
	c.reader.Stderr, c.writer.Stderr = &c.err, &c.told
	c.out, err = c.reader.StdoutPipe()
	require.NoError(t, err)
	c.feed, err = c.writer.StdinPipe()
	require.NoError(t, err)
	t.Cleanup(c.end)
	for _, p := range []*exec.Cmd{c.reader, c.writer} {
		p.Env = append(programs.ProgramEnv(), "GPUFD_DRIVER=soft")
		require.NoError(t, p.Start())
	}
	return c
}

// end ends both, so that what they told can be read.
func (c *channelOfC) end() {
	for _, p := range []*exec.Cmd{c.writer, c.reader} {
		if p.Process != nil {
			_ = p.Process.Kill()
			_ = p.Wait()
		}
	}
}

// frames are so many, of which the last is shorter, each of bytes that no other has.
func (c *channelOfC) frames(n int) []byte {
	data := make([]byte, n*4099-1000)
	r := rand.NewChaCha8([32]byte{7})
	_, err := r.Read(data)
	require.NoError(c.t, err)
	return data
}

// TestChannelByC: a reader in C gets every byte that gpufd writes; one that drops gets whole
// frames, in order.
func TestChannelByC(t *testing.T) {
	programs.Parallel(t)
	cutest.ProvenOnSoft(t)
	for _, policy := range args("block", "drop-oldest", "drop-newest", "latest") {
		t.Run(policy, func(t *testing.T) {
			programs.Parallel(t)
			c := newChannelOfC(t, policy, "4")
			data := c.frames(300)
			fed := make(chan error, 1)
			go func() {
				_, err := c.feed.Write(data)
				fed <- errors.Join(err, c.feed.Close())
			}()
			got := ok(io.ReadAll(c.out))(t)
			require.NoError(t, <-fed)
			require.NoError(t, c.writer.Wait())
			require.NoError(t, c.reader.Wait(), c.err.String())
			if policy == "block" {
				require.True(t, bytes.Equal(data, got), "%d bytes of %d", len(got), len(data))
			}
			require.NotEmpty(t, got)
			for len(got) > 0 {
				frame := got[:min(4099, len(got))]
				at := bytes.Index(data, frame)
				require.GreaterOrEqual(t, at, 0, "a frame that was not written, or a second time")
				got, data = got[len(frame):], data[at+len(frame):]
			}
		})
	}
}

// TestChannelByCWriterKilled: the frame that was whole is there, and the error names it.
func TestChannelByCWriterKilled(t *testing.T) {
	programs.Parallel(t)
	cutest.ProvenOnSoft(t)
	for _, policy := range args("block", "latest") {
		t.Run(policy, func(t *testing.T) { testWriterKilled(t, newChannelOfC(t, policy, "4")) })
	}
}

func testWriterKilled(t *testing.T, c *channelOfC) {
	data := c.frames(2)
	_, err := c.feed.Write(data[:5000])
	require.NoError(t, err)
	got := make([]byte, 4099)
	if _, err = io.ReadFull(c.out, got); err != nil {
		c.end()
		require.NoError(t, err, "reader: %s\n%s\nwriter: %s\n%s", c.reader.ProcessState, &c.err, c.writer.ProcessState, &c.told)
	}
	require.True(t, bytes.Equal(data[:4099], got))
	require.NoError(t, c.writer.Process.Kill())
	rest, err := io.ReadAll(c.out)
	require.NoError(t, err)
	require.Empty(t, rest)
	require.Error(t, c.reader.Wait())
	require.Equal(t, 4, c.reader.ProcessState.ExitCode())
	require.Contains(t, c.err.String(), "the last whole frame is 1")
}
