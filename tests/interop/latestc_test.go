package interop

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/channel"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/tests/internal/programs"
)

// patterned fills b, a frame, with words that are all its sequence.
func patterned(b []byte, sequence uint64) []byte {
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], sequence)
	}
	return b
}

// TestLatestByC: a reader of latest in C copies whole frames while the writer, which waits for nobody, goes round three
// slots. It is stopped again and again, often while it copies one. Its last frame is the last that was written.
func TestLatestByC(t *testing.T) {
	programs.NeedCC(t)
	cutest.ProvenOnSoft(t)
	const rounds, size = 300, 512 << 10
	dir := ok(os.MkdirTemp(programs.ShortTempDir(), "gpufd-"))(t)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ctx := cutest.Context(t, cutest.Device(t))
	srv := ok(share.Listen(filepath.Join(dir, "s"), nil))(t)
	defer srv.Close()
	w := ok(channel.NewWriter(t.Context(), ctx, srv, "cam", 3, size))(t)
	defer w.Close()
	out := os.NewFile(uintptr(ok(unix.MemfdCreate("frames", unix.MFD_CLOEXEC))(t)), "frames")
	defer out.Close()
	reader := exec.CommandContext(t.Context(), ok(channelReader())(t), "-socket", srv.Path(), "-name", "cam", "-policy", "latest", "-timeout", "60")
	reader.Env = append(programs.ProgramEnv(), "GPUFD_DRIVER="+cutest.Kind().String())
	reader.Stdout, reader.Stderr = out, os.Stderr
	require.NoError(t, reader.Start())
	require.NoError(t, w.AwaitReaders(t.Context(), 1))
	b := make([]byte, size)
	publish := func(n int) {
		for range n {
			slot := ok(w.Acquire(t.Context()))(t)
			require.NoError(t, cu.CopyToDevice(ctx, slot.Ptr(), patterned(b, slot.Sequence)))
			require.NoError(t, w.Publish(slot, channel.Meta{}))
		}
	}
	for i := range rounds {
		publish(2 + i%5)
		require.NoError(t, reader.Process.Signal(syscall.SIGSTOP))
		publish(4) // more than there are slots
		require.NoError(t, reader.Process.Signal(syscall.SIGCONT))
	}
	require.Zero(t, w.Stats().MaxStall)
	require.NoError(t, w.Close())
	require.NoError(t, reader.Wait())
	_ = ok(out.Seek(0, io.SeekStart))(t)
	var n, last uint64
	for want := make([]byte, size); ; n++ {
		_, err := io.ReadFull(out, b)
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		sequence := binary.LittleEndian.Uint64(b)
		require.Greater(t, sequence, last)
		require.True(t, bytes.Equal(b, patterned(want, sequence)), "frame %d is of two", sequence)
		last = sequence
	}
	require.Equal(t, w.Last(), last, "the newest frame is the last")
	t.Logf("%d of %d frames", n, last)
}
