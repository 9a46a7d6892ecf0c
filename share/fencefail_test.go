package share

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/vmm"
)

// A consumer that resumed its lease is asked to release the memory as any other, also if
// that took more than one record when it attached.
func TestResumedConsumerIsAskedToRelease(t *testing.T) {
	dev, ctx := leavesNothing(t)
	g := granularity(t, dev)
	buf := newBuffer(t, ctx, (maxFDs+1)*g, vmm.WithChunkSize(g))
	att := lostAttachment(t, dev, buf, WithAccess(ReadWrite))
	srv := again(t, att)
	srv.opts.goodbye = brief // nobody has to be quick
	s := serve(t, srv, buf, WithFence(soon(t), Released))
	next, err := att.Resume(soon(t))
	require.NoError(t, err)
	s.await(t, Mapped, 1)
	s.cancel()
	require.ErrorIs(t, awaitDone(t, next), ErrRevoked)
	outlast(t)
	require.NoError(t, next.Close())
	require.NoError(t, s.end(t))
}

// Who could not attach, or was told meanwhile that the offer is over, has nothing of the
// memory, and is not waited for.
func TestOfferDoesNotWaitForWhoCouldNotAttach(t *testing.T) {
	spy, dev, ctx := spied(t)
	srv := listen(t)
	s := serve(t, srv, newBuffer(t, ctx, 1), WithFence(soon(t), Released))
	err := spy.during("cuMemMap", func() error {
		_, err := Attach(soon(t), srv.Path(), "data", dev, WithAccess(ReadWrite))
		return err
	})
	require.ErrorIs(t, err, cu.ErrOutOfMemory)
	require.ErrorIs(t, s.await(t, Ended, 1).Err, ErrVerdict)
	s.cancel()
	require.NoError(t, s.end(t))

	p, s := prepared(t, srv, "data", newBuffer(t, ctx, 1), ReadWrite, WithFence(soon(t), Released))
	result := make(chan error, 1)
	go func() {
		_, err := Attach(soon(t), srv.Path(), "data", dev, WithAccess(ReadWrite))
		result <- err
	}()
	s.await(t, Sent, 1)
	require.NoError(t, p.Close())
	require.ErrorIs(t, <-result, ErrRevoked)
}
