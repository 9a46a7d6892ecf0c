package keeper

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/vmm"
)

// errGivenUp is what a Write fails with.
var errGivenUp = errors.New("given up")

// A fillLater is a Write that fails while its stream has not yet filled the memory.
type fillLater struct {
	s, helper *cu.Stream
	word      *cu.Memory
	buf       chan *vmm.Buffer
}

func newFillLater(t *testing.T, ctx *cu.Context) *fillLater {
	t.Helper()
	f := &fillLater{ok(ctx.NewStream())(t), ok(ctx.NewStream())(t), ok(ctx.Alloc(4))(t), make(chan *vmm.Buffer, 1)}
	require.NoError(t, cu.Fill(ctx, f.word, uint32(0), 1))
	t.Cleanup(func() { require.NoError(t, errors.Join(f.release(), f.s.Close(), f.helper.Close(), f.word.Close())) })
	return f
}

func (f *fillLater) write(_ context.Context, buf *vmm.Buffer) error {
	err := errors.Join(f.s.WaitValue32(f.word.Ptr(), 1, cu.WaitGEQ), cu.FillAsync(f.s, buf, uint8(7), buf.Size()))
	f.buf <- buf
	return errors.Join(errGivenUp, err)
}

func (f *fillLater) release() error { return f.helper.WriteValue32(f.word.Ptr(), 1, cu.WriteDefault) }

// A Put whose Write failed waits for the work that Write has left behind, which finds its memory.
func TestPutWaitsForTheWorkOfAFailedWrite(t *testing.T) {
	_, c, dev := kept(t)
	ctx := cutest.Context(t, dev)
	f := newFillLater(t, ctx)
	p := part(0, dev, 7)
	p.Write = f.write
	failed := make(chan error, 1)
	go func() { failed <- errOf(c.Put(soon(t), Put{Name: "w"}, p)) }()
	buf := <-f.buf
	require.NoError(t, f.release())
	require.ErrorIs(t, <-failed, errGivenUp)
	require.NoError(t, f.s.Synchronize(soon(t)))
	require.Zero(t, buf.Ptr())
}

// If it waits in vain, the memory stays, and the error says so.
func TestPutReportsMemoryInUse(t *testing.T) {
	_, c, _ := kept(t)
	dev := cutest.Device(t, cu.WithCloseLimit(20*time.Millisecond))
	ctx := cutest.Context(t, dev)
	f := newFillLater(t, ctx)
	p := part(0, dev, 7)
	p.Write = f.write
	err := errOf(c.Put(soon(t), Put{Name: "w"}, p))
	require.ErrorIs(t, err, errGivenUp)
	require.ErrorIs(t, err, vmm.ErrInUse)
	require.ErrorContains(t, err, "this process keeps the part's memory")
	require.NoError(t, f.release())
	require.NoError(t, f.s.Synchronize(soon(t)))
	require.NoError(t, (<-f.buf).Close())
}
