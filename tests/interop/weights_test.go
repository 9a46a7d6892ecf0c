package interop

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/channel"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/weights"
)

// sent are the tensors of testdata/publisher.py, with their sizes.
var sent = []struct {
	name, dtype string
	shape       []uint64
	size        uint64
}{{"a", "U8", []uint64{1000}, 1000}, {"big", "F32", []uint64{250, 100}, 100_000}, {"none", "U8", []uint64{0}, 0}, {"last", "I64", []uint64{3}, 24}}

// content is what a tensor has at a step.
func content(name string, step int64, size uint64) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i*31 + i>>8*7 + int(step)*13 + int(name[0]))
	}
	return b
}

// publisher starts a publisher in Python at the scene's socket.
func publisher(s *programs.Scene, words ...string) *programs.Process {
	s.T.Helper()
	return publisherAt(s, s.Socket, nil, words...)
}

// publisherAt starts one at a socket; "" is its default.
func publisherAt(s *programs.Scene, socket string, env []string, words ...string) *programs.Process {
	s.T.Helper()
	file := filepath.Join(programs.Root(), "tests", "interop", "testdata", "publisher.py")
	env = append(env, "GPUFD_DRIVER="+programs.KindName(), "PYTHONPATH="+filepath.Join(programs.Root(), "python"))
	return programs.Start(s.T, "publisher.py", programs.Python(s.T), env, append(args("-B", file, socket), words...)...)
}

// follow gives body each update of the scene's publisher, until it says that it has enough.
func follow(s *programs.Scene, c *cu.Context, body func(ctx context.Context, u *weights.Update) (more bool)) {
	s.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for u, err := range weights.Follow(ctx, "policy", c, &weights.Options{Socket: s.Socket}) {
		require.NoError(s.T, err)
		if !body(ctx, u) {
			return
		}
	}
}

// A loaded tensor was put together of pieces.
type loaded struct {
	weights.Meta
	bytes  []byte
	pieces int
}

// load takes the tensors of an update, up to its end.
func load(ctx context.Context, c *cu.Context, u *weights.Update) (all []loaded, err error) {
	for x, err := range u.Tensors(ctx) {
		if err != nil {
			return all, err
		}
		if x.From == 0 {
			all = append(all, loaded{x.Meta, make([]byte, x.Total), 0})
		}
		l := &all[len(all)-1]
		l.pieces++
		if x.Size == 0 {
			continue
		}
		if err := cu.CopyToHost(c, l.bytes[x.From:x.From+x.Size], x.Ptr); err != nil {
			return all, err
		}
	}
	return all, nil
}

// requireSent checks every byte of the first n tensors.
func requireSent(t testing.TB, step int64, n int, all []loaded) {
	t.Helper()
	require.Len(t, all, n)
	for i, l := range all {
		want := sent[i]
		require.Equal(t, weights.Meta{Name: want.name, DType: want.dtype, Shape: want.shape}, l.Meta)
		require.Equal(t, content(want.name, step, want.size), l.bytes, "%s at step %d", want.name, step)
	}
	require.Greater(t, all[1].pieces, 5, "it is larger than a bucket")
}

// TestInteropWeights: Go reads what Python publishes, byte by byte; an update that was given up is torn, and the next one is whole. The
// publisher learns what was loaded.
func TestInteropWeights(t *testing.T) {
	programs.Parallel(t)
	s, c := programs.NewScene(t), cutest.Context(t, cutest.Device(t))
	p := publisher(s, "update", "7", "update", "8", "fail", "-9", "update", "10")
	var steps []int64
	follow(s, c, func(ctx context.Context, u *weights.Update) bool {
		steps = append(steps, u.Step)
		require.EqualValues(t, len(steps), u.Number)
		require.Nil(t, u.Metadata.Tensors)
		all, err := load(ctx, c, u)
		if u.Step == -9 {
			var torn *weights.TornError
			require.ErrorAs(t, err, &torn)
			require.EqualValues(t, -9, torn.Step)
			require.Equal(t, "a", all[0].Name)
			return true
		}
		require.NoError(t, err)
		requireSent(t, u.Step, len(sent), all)
		return u.Step < 10
	})
	require.Equal(t, []int64{7, 8, -9, 10}, steps)
	p.WaitLine("loaded 1")
	p.WaitLine("loaded 2")
	p.WaitLine("failed 3")
	p.Succeeds()
}

// TestInteropWeightsKilled: a publisher that is killed within an update leaves it torn.
func TestInteropWeightsKilled(t *testing.T) {
	programs.Parallel(t)
	s, c := programs.NewScene(t), cutest.Context(t, cutest.Device(t))
	p := publisher(s, "update", "1", "hang", "2")
	follow(s, c, func(ctx context.Context, u *weights.Update) bool {
		if u.Step == 1 {
			requireSent(t, 1, len(sent), ok(load(ctx, c, u))(t))
			return true
		}
		killed := make(chan struct{})
		go func() { // while this side makes room for more
			defer close(killed)
			p.WaitLine("hanging")
			p.Kill()
		}()
		all, err := load(ctx, c, u)
		<-killed
		require.ErrorIs(t, err, weights.ErrTorn)
		require.ErrorIs(t, err, channel.ErrLost)
		require.ErrorContains(t, err, "step 2")
		require.Equal(t, content("a", 2, 1000), all[0].bytes)
		return false
	})
	s.Reclaimed()
}

// TestInteropWeightsInPlace: Go computes on Python's memory until the publisher wants it, and then finds the next step there.
func TestInteropWeightsInPlace(t *testing.T) {
	programs.Parallel(t)
	s, c := programs.NewScene(t), cutest.Context(t, cutest.Device(t))
	p := publisher(s, "place", "1", "place", "2", "place", "3")
	var ptr cu.DevicePtr
	follow(s, c, func(ctx context.Context, u *weights.Update) bool {
		require.True(t, u.Metadata.InPlace)
		var held []weights.Tensor
		for x, err := range u.Tensors(ctx) {
			require.NoError(t, err)
			require.NoError(t, x.Hold())
			held = append(held, x)
		}
		require.Len(t, held, 2)
		require.Equal(t, weights.Meta{Name: "rows", DType: "F32", Shape: []uint64{2, 8}, Of: &weights.Shard{Shape: []uint64{8, 8}, Begin: []uint64{6, 0}}}, held[1].Meta)
		require.Equal(t, u.Metadata.Tensors, []weights.Meta{held[0].Meta, held[1].Meta})
		if ptr != 0 {
			require.Equal(t, ptr, held[1].Ptr)
		}
		ptr = held[1].Ptr
		check := func() {
			for _, x := range held {
				b := make([]byte, x.Size)
				require.NoError(t, cu.CopyToHost(c, b, x.Ptr))
				require.Equal(t, content(x.Name, u.Step, x.Size), b, "%s at step %d", x.Name, u.Step)
			}
		}
		check()
		if u.Step == 3 {
			return false
		}
		require.NoError(t, u.AwaitWanted(ctx))
		check() // nobody writes before this side returns
		return true
	})
	p.Succeeds()
}

// TestInteropWeightsListed: gpufd ls finds a publisher in Python where it listens by default, and counts its subscribers.
func TestInteropWeightsListed(t *testing.T) {
	programs.Parallel(t)
	s, c := programs.NewScene(t), cutest.Context(t, cutest.Device(t))
	s.Keep("gpufd") // the directory of default sockets
	env := args("XDG_RUNTIME_DIR="+s.Dir, "NVIDIA_DRA_LOCAL_IPC_DIR=", "GPUFD_SOCKET=")
	p := publisherAt(s, "", env, "update", "1")
	list := func() string {
		ls := exec.Command(programs.ProgramPath(t, "gpufd"), "ls", "--timeout", "1s")
		ls.Env = append(programs.ProgramEnv(), env...)
		out, _ := ls.Output() // fails while neither is there
		return string(out)
	}
	programs.Eventually(t, func() bool { return strings.Contains(list(), "policy") }, "gpufd ls does not find the publisher: %s\n%s", programs.Late(func() any { return list() }), programs.Late(func() any { return p.Dump() }))
	require.Regexp(t, `(?m)^policy +.* 3 x 16 KiB +0$`, list())
	s.Socket = filepath.Join(s.Dir, "gpufd", "offers", "policy%40"+weights.OfferName("", c.Device().UUID())[1:]+".sock")
	follow(s, c, func(ctx context.Context, u *weights.Update) bool {
		require.Regexp(t, `(?m)^policy +.* 3 x 16 KiB +1$`, list())
		requireSent(t, 1, len(sent), ok(load(ctx, c, u))(t))
		return false
	})
	p.Succeeds()
}
