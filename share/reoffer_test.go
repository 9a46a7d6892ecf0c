package share

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// childSuccessor attaches to the predecessor at the path that it is told, and offers
// the same memory at its own.
func childSuccessor() error {
	dev, ctx, err := childDevice()
	if err != nil {
		return err
	}
	att, err := Attach(context.Background(), os.Getenv(doEnv), "data", dev, WithReoffer(), WithAccess(ReadWrite))
	if err != nil {
		return err
	}
	offer := func(served context.Context, srv *Server) error {
		return srv.Offer(served, "data", att.Buffer(), ReadWrite)
	}
	return errors.Join(serveUntilInputEnds(offer), att.Close(), ctx.Close())
}

// Memory goes on from process to process while those before end, one in good order and
// one by SIGKILL. The bytes stay, and so does the generation.
//
//fault:rows 85
func TestMemoryIsOfferedOnFromProcessToProcess(t *testing.T) {
	dev, ctx := leavesNothing(t)
	paths := []string{socketPath(t), socketPath(t), socketPath(t)}
	v1 := start(t, "producer", paths[0], "3145728")
	v1.says(t, "listening")
	first := attachedAt(t, paths[0], dev)
	generation := first.Offer().Descriptor.Generation

	v2 := start(t, "successor", paths[1], paths[0])
	v2.says(t, "listening")
	second := attachedAt(t, paths[1], dev, WithAccess(ReadWrite))
	v1.end(t)
	require.ErrorIs(t, awaitDone(t, first), ErrRevoked)
	require.Equal(t, generation, second.Offer().Descriptor.Generation)
	requireNoise(t, ctx, second.Buffer(), 1)
	require.NoError(t, second.Err())

	v3 := start(t, "successor", paths[2], paths[1])
	v3.says(t, "listening")
	third := attachedAt(t, paths[2], dev)
	v2.kill()
	require.ErrorIs(t, awaitDone(t, second), sock.ErrPeerLost)
	require.Equal(t, first.Offer().Descriptor, third.Offer().Descriptor)
	requireNoise(t, ctx, third.Buffer(), 1)
	require.NoError(t, cu.CopyToDevice(ctx, second.Ptr(), noise(second.Size(), 2)))
	for _, att := range []*Attachment{first, second, third} {
		requireNoise(t, ctx, att.Buffer(), 2) // it is one memory
		require.NoError(t, att.Close())
	}
	v3.end(t)
	srv, err := Listen(paths[1]) // what the killed one left on disk is reclaimed
	require.NoError(t, err)
	require.NoError(t, srv.Close())
}

// attachedAt attaches to "data" of another process.
func attachedAt(t *testing.T, path string, dev *cu.Device, opts ...AttachOption) *Attachment {
	t.Helper()
	att := ok(Attach(soon(t), path, "data", dev, opts...))(t)
	t.Cleanup(func() { require.NoError(t, att.Close()) })
	return att
}

// A successor that attached read-only offers read-only, whatever its predecessor offered.
func TestNoMoreAccessIsOfferedOn(t *testing.T) {
	dev, ctx := leavesNothing(t)
	v1 := listen(t)
	put(t, v1, newBuffer(t, ctx, 1))
	v2 := listen(t)

	plain := attached(t, v1, "data", dev)
	require.ErrorIs(t, v2.Offer(soon(t), "data", plain.Buffer(), ReadOnly), vmm.ErrNotShareable)

	readOnly := attached(t, v1, "data", dev, WithReoffer())
	err := v2.Offer(soon(t), "data", readOnly.Buffer(), ReadWrite)
	require.ErrorIs(t, err, vmm.ErrNotShareable)
	require.ErrorContains(t, err, "read-only")
	require.ErrorIs(t, errOf(v2.Prepare("data", readOnly.Buffer(), ReadWrite)), vmm.ErrNotShareable)
	s := serveAs(t, v2, "data", readOnly.Buffer(), ReadOnly)
	_, err = Attach(soon(t), v2.Path(), "data", dev, WithAccess(ReadWrite))
	var no *RefusalError
	require.ErrorAs(t, err, &no)
	require.Equal(t, RefusedAccess, no.Code)
	s.stop(t)

	readWrite := attached(t, v1, "data", dev, WithReoffer(), WithAccess(ReadWrite))
	s = put(t, v2, readWrite.Buffer())
	att := attached(t, v2, "data", dev, WithAccess(ReadWrite))
	require.NoError(t, att.Close())
	s.stop(t)
}

// While the memory is offered on, its predecessor goes on hearing that it is in use.
func TestAttachmentThatIsOfferedOnIsNotClosed(t *testing.T) {
	dev, ctx := leavesNothing(t)
	v1, v2 := listen(t), listen(t)
	s1 := put(t, v1, newBuffer(t, ctx, 1<<20))
	from := attached(t, v1, "data", dev, WithReoffer())
	s2 := serveAs(t, v2, "data", from.Buffer(), ReadOnly)
	for range 2 {
		require.ErrorIs(t, from.Close(), ErrInUse)
		require.NoError(t, from.Err())
		require.Len(t, v1.Leases("data"), 1)
		requireNoise(t, ctx, attached(t, v2, "data", dev).Buffer(), 1)
	}
	s1.cancel() // the end of the lease takes nothing away
	require.ErrorIs(t, awaitDone(t, from), ErrRevoked)
	require.NoError(t, s1.end(t))
	require.ErrorIs(t, from.Close(), ErrInUse)
	requireNoise(t, ctx, attached(t, v2, "data", dev).Buffer(), 1)

	s2.stop(t)
	require.NoError(t, from.Close())
	require.NoError(t, from.Close())
	require.ErrorIs(t, from.Err(), ErrRevoked)
}

// Close closes the memory before the connection, because a producer that hears that the lease has
// ended may write the memory.
func TestMemoryOfferedOnIsClosedBeforeItsLeaseEnds(t *testing.T) {
	var from *Attachment
	var lease []error // as it is when memory is unmapped
	dev := cutest.Device(t, cu.WithHook(func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		if call.Symbol() == "cuMemUnmap" {
			lease = append(lease, from.Err())
		}
		return next()
	}))
	ctx := leavesNothingOn(t, dev)
	v1 := listen(t)
	put(t, v1, newBuffer(t, ctx, 1))
	from = attached(t, v1, "data", dev, WithReoffer())
	require.NoError(t, from.Close())
	require.Equal(t, []error{nil}, lease)
	require.ErrorIs(t, from.Err(), ErrClosed)
}

// Legacy memory ends with the process that allocated it.
func TestLegacyMemoryIsNotOfferedOn(t *testing.T) {
	dev, ctx := leavesNothing(t)
	v1 := listen(t)
	serveLegacy(t, v1, newLegacy(t, ctx, 1))
	require.ErrorIs(t, errOf(Attach(soon(t), v1.Path(), "data", dev, WithReoffer(), WithHandle(HandleFD, HandleLegacy))), ErrHandle)
	_, err := Attach(soon(t), v1.Path(), "data", dev, WithReoffer())
	var no *RefusalError
	require.ErrorAs(t, err, &no)
	require.Equal(t, RefusedUnsupported, no.Code)
}
