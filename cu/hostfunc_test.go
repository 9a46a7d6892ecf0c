package cu_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

func TestStreamCallsInOrder(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	s := ok(ctx.NewStream())(t)
	before := cu.PendingCalls()
	host := ok(ctx.AllocHost(4, 0))(t)
	seen := ok(cu.HostSlice[uint32](host))(t)
	mem := zeroed(t, ctx, 4)
	require.NoError(t, ctx.Synchronize(soon(t)))
	var got []uint32
	for i := range uint32(100) {
		require.NoError(t, cu.FillAsync(s, mem.Ptr(), i, 1))
		require.NoError(t, cu.CopyToHostAsync(s, seen, mem.Ptr()))
		require.NoError(t, s.Call(func() { got = append(got, seen[0]) }))
	}
	require.NoError(t, s.Synchronize(soon(t)))
	require.Len(t, got, 100)
	for i, v := range got {
		require.EqualValues(t, i, v, "what the stream did before, and not what after")
	}
	require.Equal(t, before, cu.PendingCalls())
	require.ErrorIs(t, (*cu.Stream)(nil).Call(func() {}), cu.ErrClosed)
	require.NoError(t, errors.Join(host.Close(), s.Close()))
	require.ErrorIs(t, s.Call(func() {}), cu.ErrClosed)
	require.Equal(t, before, cu.PendingCalls())
}

// Work given to a stream before it, or its context, was closed is done.
func TestStreamCallsAfterClose(t *testing.T) {
	ctx := ok(cutest.Device(t).NewContext(cu.SchedAuto))(t)
	before, called := cu.PendingCalls(), make(chan bool, 2)
	for range 2 {
		s := ok(ctx.NewStream())(t)
		require.NoError(t, s.Call(func() { called <- true }))
		require.NoError(t, s.Close())
	}
	require.NoError(t, ctx.Close())
	<-called
	<-called
	require.Equal(t, before, cu.PendingCalls())
}

func TestStreamCallsOfLostContextsAreForgotten(t *testing.T) {
	runChild(t, "host function in a lost context")
}

// childHostFunction loses all contexts while a function waits behind a value
// that nobody writes.
func childHostFunction() error {
	dev, err := childDevice()
	must(err)
	ctx, victim := get(dev.NewContext(cu.SchedAuto)), get(dev.NewContext(cu.SchedAuto))
	word, s := get(ctx.Alloc(4)), get(ctx.NewStream())
	must(errors.Join(cu.Fill(ctx, word.Ptr(), uint32(0), 1), ctx.Synchronize(noEnd{}), s.WaitValue32(word.Ptr(), 1, cu.WaitEQ)))
	must(s.Call(func() { panic("called in a context that is lost") }))
	if n := cu.PendingCalls(); n != 1 {
		return fmt.Errorf("%d functions wait, want 1", n)
	}
	free := poison(victim)
	for !errors.Is(err, cu.ErrContextLost) {
		_, err = s.Query()
	}
	if n := cu.PendingCalls(); n != 0 {
		return fmt.Errorf("%d functions wait in lost contexts", n)
	}
	if err := s.Call(func() {}); !errors.Is(err, cu.ErrContextLost) || cu.PendingCalls() != 0 {
		return fmt.Errorf("in a lost context: %v, and %d functions wait", err, cu.PendingCalls())
	}
	return errors.Join(victim.Close(), ctx.Close(), free())
}

// A driver that refuses keeps nothing.
func TestStreamCallThatIsRefused(t *testing.T) {
	spy, _, _, ctx := spiedContext(t)
	s := newStream(t, ctx)
	spy.Fail("cuLaunchHostFunc", cu.ErrOutOfMemory)
	before := cu.PendingCalls()
	require.ErrorIs(t, s.Call(func() {}), cu.ErrOutOfMemory)
	require.Equal(t, before, cu.PendingCalls())
}
