package counter

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/testenv"
	"github.com/gpufd/gpufd/vmm"
)

func TestMain(m *testing.M) {
	cutest.Main(m, cutest.Children{"peer": childPeer, "loses a counter": childLosesACounter})
}

// The slots of the tests: where each side waits. The chunk has more of them.
const (
	parentSlot = iota
	childSlot
	manyWaits = 1000 // outstanding at once
	slots     = manyWaits
)

// briefly is how long Close waits where it must fail.
const briefly = 30 * time.Millisecond

// soon is a deadline for what should happen at once.
func soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// faulty returns a context of a driver whose functions can be made to fail.
func faulty(t testing.TB) (*cutest.Faults, *cu.Context) {
	t.Helper()
	faults := cutest.NewFaults(t)
	return faults, cutest.Context(t, cutest.Device(t, faults.Option()))
}

// during calls f while function fails.
func during(faults *cutest.Faults, function string, f func() error) error {
	defer faults.Fail(function, cu.ErrOutOfMemory).Stop()
	return f()
}

// control returns a chunk for counters, of zeros, closed when t ends.
func control(t testing.TB, ctx *cu.Context) *vmm.Buffer {
	t.Helper()
	buf := ok(vmm.New(ctx.Device(), slots*Stride))(t)
	t.Cleanup(func() { require.NoError(t, buf.Close()) })
	require.NoError(t, cu.Fill(ctx, buf.Ptr(), uint8(0), buf.Size()))
	require.NoError(t, ctx.Synchronize(soon(t)))
	return buf
}

// newCounter returns a counter that the test closes, and whose Close fails soon.
func newCounter(t testing.TB, ctx *cu.Context, buf *vmm.Buffer) *Counter {
	t.Helper()
	c := ok(New(ctx, buf, parentSlot))(t)
	c.limit = briefly
	return c
}

// counterAt returns a counter of a slot, closed when t ends.
func counterAt(t testing.TB, ctx *cu.Context, buf *vmm.Buffer, slot int) *Counter {
	t.Helper()
	c := ok(New(ctx, buf, slot))(t)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// counters returns the counters of both sides.
func counters(t testing.TB, ctx *cu.Context, buf *vmm.Buffer) (mine, theirs *Counter) {
	t.Helper()
	return counterAt(t, ctx, buf, parentSlot), counterAt(t, ctx, buf, childSlot)
}

// A gate holds up streams until it is opened.
type gate struct {
	word *vmm.Buffer
	key  *cu.Stream
}

func newGate(t testing.TB, ctx *cu.Context) *gate {
	t.Helper()
	g := &gate{word: control(t, ctx), key: newStream(t, ctx)}
	t.Cleanup(func() { g.open(t) })
	return g
}

// hold makes the work that s is given from now on wait until the gate is opened.
func (g *gate) hold(t testing.TB, s *cu.Stream) {
	t.Helper()
	require.NoError(t, s.WaitValue32(g.word.Ptr(), 1, cu.WaitGEQ))
}

func (g *gate) open(t testing.TB) {
	t.Helper()
	require.NoError(t, g.key.WriteValue32(g.word.Ptr(), 1, cu.WriteDefault))
	require.NoError(t, g.key.Synchronize(soon(t)))
}

// newStream is a stream, closed when t ends.
func newStream(t testing.TB, ctx *cu.Context) *cu.Stream {
	t.Helper()
	s := ok(ctx.NewStream())(t)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// requireWell checks that the context is not lost.
func requireWell(t testing.TB, ctx *cu.Context) {
	t.Helper()
	require.NoError(t, ctx.Synchronize(soon(t)))
	require.NoError(t, control(t, ctx).Close())
}

// descriptorEnv tells a child what its descriptor 3 is.
const descriptorEnv = testenv.Prefix + "DESCRIPTOR"

// turns is how many turns a peer answers.
const turns = 20

// startPeer starts a child, by the program front, that answers turns in buf, and then ends.
func startPeer(t *testing.T, buf *vmm.Buffer, front []string) *exec.Cmd {
	t.Helper()
	d, files, err := buf.Export()
	require.NoError(t, err)
	cmd := cutest.Child(soon(t), "peer", descriptorEnv+"="+string(ok(json.Marshal(d))(t)))
	if front != nil {
		cutest.Front(t, cmd, front)
	}
	cmd.ExtraFiles, cmd.Stderr = files, os.Stderr
	require.NoError(t, errors.Join(cmd.Start(), files[0].Close()))
	return cmd
}

func childPeer() error {
	var d vmm.Descriptor
	testenv.Must(json.Unmarshal([]byte(os.Getenv(descriptorEnv)), &d))
	dev := testenv.Got(testenv.Got(cutest.Open()).DeviceByUUID(d.Device))
	file := os.NewFile(3, "control")
	buf := testenv.Got(vmm.Import(dev, d, []*os.File{file}, vmm.WithAccess(cu.ReadWrite)))
	ctx := testenv.Got(dev.PrimaryContext())
	s := testenv.Got(ctx.NewStream())
	parents, mine := testenv.Got(New(ctx, buf, parentSlot)), testenv.Got(New(ctx, buf, childSlot))
	for n := uint64(1); n <= turns; n++ {
		w := testenv.Got(mine.Wait(context.Background(), s, n))
		testenv.Must(errors.Join(parents.Signal(s, n), w.Result()))
	}
	testenv.Must(s.Synchronize(context.Background()))
	return errors.Join(parents.Close(), mine.Close(), s.Close(), buf.Close(), ctx.Close(), file.Close())
}

// setWord changes what a driver has copied to at.
func setWord(at uintptr, n uint64) { **(**uint64)(unsafe.Pointer(&at)) = n }

// ok returns v, and fails the test if there is an error: ok(f())(t).
func ok[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		require.NoError(t, err)
		return v
	}
}

// errOf returns the error of a call with two results.
func errOf[T any](_ T, err error) error { return err }
