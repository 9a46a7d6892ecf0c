package keeper

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
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

// A Put of filled memory waits once for other work, as long as its context and the driver's limit allow. Then the memory
// is its caller's, and the error says so.
func TestPutWaitsOnceBeforeItUnmaps(t *testing.T) {
	_, c, _ := kept(t)
	for name, x := range map[string]struct {
		limit time.Duration
		ctx   func(*testing.T) (context.Context, context.CancelFunc)
		want  error
	}{
		"the driver's limit":    {20 * time.Millisecond, endless, context.DeadlineExceeded},
		"its context is ending": {time.Hour, endable, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			faults := cutest.NewFaults(t)
			dev := cutest.Device(t, faults.Option(), cu.WithCloseLimit(x.limit))
			f := newFillLater(t, cutest.Context(t, dev))
			ctx, cancel := x.ctx(t)
			stop := f.fillBefore(t, faults, cancel)
			p := part(0, dev, 7)
			p.Write = func(ctx context.Context, buf *vmm.Buffer) error {
				f.buf <- buf
				return writeAll(7)(ctx, buf)
			}
			err := errOf(c.Put(ctx, Put{Name: "w"}, p))
			stop()
			buf := <-f.buf
			require.ErrorIs(t, err, vmm.ErrInUse)
			require.ErrorIs(t, err, x.want)
			require.NotZero(t, buf.Ptr())
			for _, text := range []string{"this process keeps the part's memory", "is not closed", "keeper:"} {
				require.Equal(t, 1, strings.Count(err.Error(), text), "%s: %s", text, err)
			}
			require.NoError(t, f.release())
			require.NoError(t, f.s.Synchronize(soon(t)))
			require.NoError(t, buf.Close())
		})
	}
}

func endless(*testing.T) (context.Context, context.CancelFunc) {
	return context.Background(), func() {}
}

func endable(t *testing.T) (context.Context, context.CancelFunc) { return context.WithCancel(soon(t)) }

// fillBefore gives the stream work that does not end when memory is exported, and calls asked whenever the driver is
// asked whether that is done.
func (f *fillLater) fillBefore(t *testing.T, faults *cutest.Faults, asked func()) (stop func()) {
	t.Helper()
	export := faults.Hook("cuMemExportToShareableHandle", func(_ sys.Call, next func() sys.CUresult) sys.CUresult {
		if err := f.s.WaitValue32(f.word.Ptr(), 1, cu.WaitGEQ); err != nil {
			t.Error(err)
		}
		return next()
	})
	query := faults.Hook("cuStreamQuery", func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		r := next()
		if sys.CUstream(call.Arg(0)) == f.s.Handle() && r == sys.CUDA_ERROR_NOT_READY {
			asked()
		}
		return r
	})
	return func() {
		export.Stop()
		query.Stop()
	}
}
