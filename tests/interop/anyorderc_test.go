package interop

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/channel"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/tests/internal/programs"
)

// TestOneSlotByC: a reader in C gets every byte by way of one slot, and asks for no policy that takes more.
func TestOneSlotByC(t *testing.T) {
	programs.Parallel(t)
	cutest.ProvenOnSoft(t)
	c := newChannelOfC(t, "block", "1")
	data := c.frames(50)
	fed := make(chan error, 1)
	go func() {
		_, err := c.feed.Write(data)
		fed <- errors.Join(err, c.feed.Close())
	}()
	require.Equal(t, data, ok(io.ReadAll(c.out))(t))
	require.NoError(t, <-fed)
	require.NoError(t, c.reader.Wait(), c.err.String())

	c = newChannelOfC(t, "latest", "1")
	require.Error(t, c.reader.Wait())
	require.Equal(t, 1, c.reader.ProcessState.ExitCode())
	require.Contains(t, c.err.String(), "one slot, where readers block")
}

// TestAnyOrderByC: the reader in C says that it does not give slots back in any order, and the writer goes on.
func TestAnyOrderByC(t *testing.T) {
	programs.NeedCC(t)
	cutest.ProvenOnSoft(t)
	dir := ok(os.MkdirTemp(programs.ShortTempDir(), "gpufd-"))(t)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ctx := cutest.Context(t, cutest.Device(t))
	srv := ok(share.Listen(filepath.Join(dir, "s"), nil))(t)
	defer srv.Close()
	w := ok(channel.NewWriter(t.Context(), ctx, srv, "cam", 4, 64, channel.WithAnyOrder()))(t)
	defer w.Close()
	reader := exec.CommandContext(t.Context(), ok(channelReader())(t), "-socket", srv.Path(), "-name", "cam", "-policy", "block", "-timeout", "60")
	reader.Env = append(programs.ProgramEnv(), "GPUFD_DRIVER="+cutest.Kind().String())
	said, err := reader.CombinedOutput()
	require.Error(t, err)
	require.Equal(t, 1, reader.ProcessState.ExitCode())
	require.Contains(t, string(said), "give its slots back in any order (flag value 2 of the cursors)")
	require.Zero(t, w.Readers())
	slot := ok(w.Acquire(t.Context()))(t)
	require.NoError(t, w.Publish(slot, channel.Meta{}))
}
