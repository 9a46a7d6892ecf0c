package share

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/vmm"
)

// A consumer that resumed its lease is asked to release the memory as any other, also if
// that took more than one record when it attached.
//
//fault:rows 82
func TestResumedConsumerIsAskedToRelease(t *testing.T) {
	dev, ctx := leavesNothing(t)
	g := granularity(t, dev)
	buf := newBuffer(t, ctx, (maxFDs+1)*g, vmm.WithChunkSize(g))
	att := lostAttachment(t, dev, buf, WithAccess(ReadWrite))
	srv := again(t, att, goodbyes(brief)) // nobody has to be quick
	s := put(t, srv, buf, WithFence(soon(t), Released))
	next := ok(att.Resume(soon(t)))(t)
	s.await(t, Mapped, 1)
	s.cancel()
	require.ErrorIs(t, awaitDone(t, next), ErrRevoked)
	outlast(t)
	require.NoError(t, next.Close())
	require.NoError(t, s.end(t))
}

// A consumer that could not attach, or was told meanwhile that the offer is over, has none of the
// memory, and is not waited for.
//
//fault:rows 82
func TestOfferDoesNotWaitForAConsumerThatCouldNotAttach(t *testing.T) {
	spy, dev, ctx := spied(t)
	srv := listen(t)
	s := put(t, srv, newBuffer(t, ctx, 1), WithFence(soon(t), Released))
	err := spy.during("cuMemMap", func() error {
		_, err := Attach(soon(t), srv.Path(), "data", dev, WithAccess(ReadWrite))
		return err
	})
	require.ErrorIs(t, err, cu.ErrOutOfMemory)
	require.ErrorIs(t, s.await(t, Ended, 1).Err, ErrVerdict)
	s.stop(t)

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

// A consumer that says at the instant of the offer's end that it cannot attach, by VERDICT 0 or
// REFUSE, has none of the memory either. One that has mapped it before, or resumes, still has it,
// and only its death tells when it is done.
func TestWhoCannotAttachWhenTheOfferEnds(t *testing.T) {
	dev, ctx := leavesNothing(t)
	no, refuse := wire.Verdict{Text: "no room"}, wire.Refuse{Code: RefusedRate, Text: "too many"}
	for name, c := range map[string]struct {
		early, mapped, resumes bool
		says                   wire.Message
		released               bool
	}{
		"it cannot attach":               {says: no, released: true},
		"it refuses":                     {says: refuse, released: true},
		"it refuses, before the end":     {says: refuse, early: true, released: true},
		"it cannot attach, early":        {says: no, early: true, released: true},
		"it has mapped the memory":       {says: no, mapped: true},
		"it has mapped, and refuses":     {says: refuse, mapped: true},
		"it has it, and resumes":         {says: no, resumes: true},
		"it has it, and resumes, early":  {says: no, resumes: true, early: true},
		"it finds the data good, though": {says: wire.Verdict{OK: true}},
	} {
		t.Run(name, func(t *testing.T) {
			srv, buf := listen(t), newBuffer(t, ctx, 1)
			wait, cancel := context.WithCancel(soon(t))
			defer cancel()
			s := put(t, srv, buf, WithFence(wait, Released))
			want := wants(dev)
			want.Access, want.Process.Told = ReadWrite, true
			if c.resumes {
				want.Resume = buf.Describe().Generation
			}
			conn := asked(t, srv, want)
			require.IsType(t, wire.Offer{}, heard(t, conn))
			s.await(t, Sent, 1)
			if !c.early {
				s.cancel()
				require.IsType(t, wire.Revoke{}, heard(t, conn))
			}
			if c.mapped { // it crosses the REVOKE
				require.NoError(t, conn.Send(soon(t), wire.Encode(isMapped(buf))))
			}
			require.NoError(t, conn.Send(soon(t), wire.Encode(c.says)))
			require.NoError(t, conn.Close())
			s.await(t, Ended, 1)
			s.cancel()
			if c.released {
				require.NoError(t, s.end(t))
				return
			}
			cancel()
			var fault *FenceError
			require.ErrorAs(t, s.end(t), &fault)
		})
	}
}
