package interop

import (
	"bytes"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/channel"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/tests/internal/programs"
)

const anyOrderFrames = 300

// anyOrderWriter writes frames, filled with the lowest byte of their sequences, and says what its readers have noted.
const anyOrderWriter = `
import sys
from gpufd import channel
w = channel.Writer("cam", socket=sys.argv[1], slots=4, slot_size=64, any_order=True)
w.await_readers(1, 60)
for n in range(1, 301):
    slot = w.acquire(60)
    slot.write(bytes([n % 256]) * 64)
    slot.publish(user=str(n).encode())
w.await_noted(300, 60)
print(*[m.noted for m in w.members])
w.close()
`

// anyOrderReader keeps up to three frames, and gives them back in any order.
const anyOrderReader = `
import random, sys
from gpufd import channel
with channel.Reader("cam", socket=sys.argv[1]) as r:
    held = []
    for n in range(1, 301):
        f = r.next(60)
        assert f.sequence == n and f.user == str(n).encode(), (f.sequence, n, f.user)
        held.append(f)
        while len(held) == 3 or held and random.random() < 0.5:
            f = held.pop(random.randrange(len(held)))
            assert f.tobytes() == bytes([f.sequence % 256]) * 64, f.sequence
            f.release()
        r.note(n)
    print(r.stats.received)
    sys.stdin.read()
`

// python starts a program in Python that uses the package.
func python(t *testing.T, text, socket string) (p *exec.Cmd, out *bytes.Buffer) {
	t.Helper()
	p = exec.CommandContext(t.Context(), programs.Python(t), "-B", "-c", text, socket)
	p.Env = append(programs.ProgramEnv(), "GPUFD_DRIVER=soft", "PYTHONPATH="+filepath.Join(programs.Root(), "python"))
	out = &bytes.Buffer{}
	p.Stdout, p.Stderr = out, out
	_ = ok(p.StdinPipe())(t) // which ends with this process
	require.NoError(t, p.Start())
	return p, out
}

// anyOrderScene is a context, and where a socket may be.
func anyOrderScene(t *testing.T) (*cu.Context, string) {
	t.Helper()
	cutest.ProvenOnSoft(t)
	if cutest.Kind() != cu.Soft {
		t.Skip("the side in Python runs on the software driver")
	}
	dir := ok(os.MkdirTemp(programs.ShortTempDir(), "gpufd-"))(t)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return cutest.Context(t, cutest.Device(t)), filepath.Join(dir, "s")
}

// TestAnyOrderFromPython: a reader in Go keeps frames of a writer in Python, and gives them back in any order, by its host
// or by a stream; the writer learns what it has noted.
func TestAnyOrderFromPython(t *testing.T) {
	ctx, socket := anyOrderScene(t)
	writer, said := python(t, anyOrderWriter, socket)
	for r, err := range channel.Follow(t.Context(), socket, "cam", ctx) {
		require.NoError(t, err)
		keepSome(t, ctx, r)
		break
	}
	require.NoError(t, writer.Wait(), said)
	require.Equal(t, "300\n", said.String())
}

// keepSome takes all frames, keeps up to three, and gives them back in any order.
func keepSome(t *testing.T, ctx *cu.Context, r *channel.Reader) {
	t.Helper()
	s := ok(ctx.NewStream())(t)
	defer func() { require.NoError(t, s.Close()) }()
	var held []channel.Frame
	for n := range uint64(anyOrderFrames) {
		f := ok(r.Next(t.Context()))(t)
		require.Equal(t, n+1, f.Sequence)
		held = append(held, f)
		for len(held) == 3 || len(held) > 0 && rand.IntN(2) == 0 {
			i := rand.IntN(len(held))
			giveBack(t, ctx, r, s, held[i])
			held = slices.Delete(held, i, i+1)
		}
		require.NoError(t, r.Note(f.Sequence))
	}
	require.NoError(t, s.Synchronize(t.Context()))
	_, err := r.Next(t.Context())
	require.ErrorIs(t, err, channel.ErrEnded)
}

// giveBack checks the bytes of a frame and releases it.
func giveBack(t *testing.T, ctx *cu.Context, r *channel.Reader, s *cu.Stream, f channel.Frame) {
	t.Helper()
	b := make([]byte, f.Size())
	require.NoError(t, cu.CopyToHost(ctx, b, f.Ptr()))
	require.Equal(t, bytes.Repeat([]byte{byte(f.Sequence)}, len(b)), b)
	if f.Sequence%2 == 0 {
		require.NoError(t, r.ReleaseOn(s, f))
		return
	}
	require.NoError(t, r.Release(f))
}

// TestAnyOrderToPython: a reader in Python keeps frames of a writer in Go, whose host or stream publishes them; the writer
// learns what it noted last, also when it is dead.
func TestAnyOrderToPython(t *testing.T) {
	ctx, socket := anyOrderScene(t)
	srv := ok(share.Listen(socket, nil))(t)
	defer srv.Close()
	left := make(chan channel.Gone, 1)
	w := ok(channel.NewWriter(t.Context(), ctx, srv, "cam", 4, 64, channel.WithAnyOrder(), channel.OnGone(func(g channel.Gone) { left <- g })))(t)
	defer w.Close()
	s := ok(ctx.NewStream())(t)
	defer func() { require.NoError(t, s.Close()) }()
	reader, said := python(t, anyOrderReader, socket)
	require.NoError(t, w.AwaitReaders(t.Context(), 1))
	for n := uint64(1); n <= anyOrderFrames; n++ {
		slot := ok(w.Acquire(t.Context()))(t)
		require.NoError(t, cu.FillAsync(s, slot.Ptr(), byte(n), 64))
		m := channel.Meta{User: strconv.AppendUint(nil, n, 10)}
		if n%2 == 0 {
			require.NoError(t, w.PublishOn(s, slot, m))
			continue
		}
		require.NoError(t, s.Synchronize(t.Context()))
		require.NoError(t, w.Publish(slot, m))
	}
	require.Eventually(t, func() bool { return slices.Equal(w.Noted(), []uint64{anyOrderFrames}) }, programs.Patience, programs.Patience/10000, said)
	require.NoError(t, reader.Process.Kill())
	_ = reader.Wait()
	require.EqualValues(t, anyOrderFrames, (<-left).Noted)
}
