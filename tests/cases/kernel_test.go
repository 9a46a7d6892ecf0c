package cases

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
)

// holding is a kernel that reads its memory until it is released, and once more then. Its words are: it has
// begun; it is released; what it read last.
const holding = `.version 7.4
.target sm_75
.address_size 64
.visible .entry hold(.param .u64 memory, .param .u64 words) {
	.reg .b64 %rd<3>; .reg .b32 %r<3>; .reg .pred %p<2>;
	ld.param.u64 %rd1, [memory];
	ld.param.u64 %rd2, [words];
	ld.volatile.global.u32 %r1, [%rd1];
	st.volatile.global.u32 [%rd2], 1;
	membar.sys;
again:
	ld.volatile.global.u32 %r1, [%rd1];
	ld.volatile.global.u32 %r2, [%rd2+4];
	setp.eq.u32 %p1, %r2, 0;
	@%p1 bra again;
	ld.volatile.global.u32 %r1, [%rd1];
	st.volatile.global.u32 [%rd2+8], %r1;
	ret;
}
`

// A holder is one run of the kernel.
type holder struct {
	module *cu.Module
	hold   *cu.Function
	memory *cu.HostMemory
	words  *[3]uint32 // in memory
}

// newHolder loads the kernel and runs it once: a GPU's driver may load code at its first launch, for which it waits
// until other kernels have ended.
func newHolder(ctx *cu.Context) (*holder, error) {
	module, err := ctx.LoadModule([]byte(holding))
	if err != nil {
		return nil, err
	}
	h := &holder{module: module}
	h.memory, err = ctx.AllocHost(4096, 0)
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	h.words = (*[3]uint32)(unsafe.Pointer(&h.memory.Bytes()[0]))
	if err := h.try(ctx); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

// try runs the kernel once.
func (h *holder) try(ctx *cu.Context) (err error) {
	if h.hold, err = h.module.Function("hold"); err != nil {
		return err
	}
	s, err := ctx.NewStream()
	if err != nil {
		return err
	}
	h.release()
	wait, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err = errors.Join(h.queue(s, h.memory), s.Synchronize(wait), s.Close())
	*h.words = [3]uint32{}
	return err
}

func (h *holder) Close() error { return errors.Join(h.memory.Close(), h.module.Close()) }

// queue gives s the kernel.
func (h *holder) queue(s *cu.Stream, memory cu.Pointer) error {
	return h.hold.Launch(s, cu.LaunchConfig{Grid: cu.Dim3{X: 1}, Block: cu.Dim3{X: 1}}, memory, h.memory)
}

// run gives s the kernel, and returns when it is at its memory.
func (h *holder) run(s *cu.Stream, memory cu.Pointer) error {
	if err := h.queue(s, memory); err != nil {
		return err
	}
	for deadline := time.Now().Add(patience); atomic.LoadUint32(&h.words[0]) == 0; time.Sleep(10 * time.Microsecond) {
		if time.Now().After(deadline) {
			return errors.New("the kernel does not begin")
		}
	}
	return nil
}

// release lets the kernel end.
func (h *holder) release() { atomic.StoreUint32(&h.words[1], 1) }

// result is what the kernel read last.
func (h *holder) result() uint32 { return atomic.LoadUint32(&h.words[2]) }

// held is a holder that is released when t ends, before what was made earlier is closed.
func held(t testing.TB, ctx *cu.Context) *holder {
	t.Helper()
	h := untilEnd(t, ok(newHolder(ctx))(t))
	t.Cleanup(h.release)
	return h
}

func newStream(t testing.TB, ctx *cu.Context) *cu.Stream {
	t.Helper()
	return untilEnd(t, ok(ctx.NewStream())(t))
}

// requireAlive checks that no context is lost.
func requireAlive(t testing.TB, ctx *cu.Context) {
	t.Helper()
	m := ok(ctx.Alloc(4))(t)
	require.NoError(t, cu.Fill(ctx, m, uint32(1), 1))
	require.NoError(t, m.Close())
}
