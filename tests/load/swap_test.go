package load

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/pattern"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/vmm"
)

// follow attaches, verifies, waits for something newer, verifies again and leaves, over
// and over.
func follow(do task) error {
	return overAndOver(func(ctx context.Context, st *stage, counts *tally) error {
		err := st.followOne(ctx, do)
		if err == nil {
			counts.add(countHandoffs, 1)
		}
		return err
	})
}

func (st *stage) followOne(over context.Context, do task) error {
	ctx, cancel := context.WithTimeout(context.Background(), do.Timeout)
	defer cancel()
	att, err := share.Attach(ctx, do.Socket, cli.OfferName, st.dev, nil)
	if errors.Is(err, share.ErrSuperseded) {
		return nil // it took longer than the grace period
	}
	if err != nil {
		return err
	}
	err = st.look(att)
	select {
	case <-att.Superseded():
	case <-att.Done():
	case <-over.Done():
	}
	err = errors.Join(err, st.look(att))
	if err != nil && lostToGrace(att) {
		err = nil
	}
	return errors.Join(err, att.Close())
}

// lostToGrace reports whether the lease was taken back, as of one who took longer than
// the grace period on a busy machine: the memory may have been written again then.
func lostToGrace(att *share.Attachment) bool {
	select {
	case <-att.Done():
	case <-time.After(5 * time.Second): // for the word to arrive
	}
	return errors.Is(att.Err(), share.ErrSuperseded)
}

// A swapper offers one version after the other in a few buffers.
type swapper struct {
	t       *testing.T
	st      *stage
	current *share.Offer
	free    chan *vmm.Buffer
	offers  sync.WaitGroup
	salt    uint32
}

// swapSize is how many bytes a version has.
const swapSize = 64 * programs.KiB

// newSwapper serves on the scene's socket until t ends.
func newSwapper(t *testing.T, s *programs.Scene, buffers int) *swapper {
	t.Helper()
	dev := cutest.Device(t)
	srv, err := share.Listen(s.Socket, nil)
	require.NoError(t, err)
	first, err := srv.Offer(cli.OfferName, nil, &share.OfferOptions{Pending: true}) // those who come early wait
	require.NoError(t, err)
	w := &swapper{t: t, st: &stage{dev: dev, ctx: cutest.Context(t, dev)}, current: first, free: make(chan *vmm.Buffer, buffers)}
	for range buffers {
		buf, err := vmm.New(dev, swapSize)
		require.NoError(t, err)
		w.free <- buf
	}
	t.Cleanup(func() {
		require.NoError(t, srv.Close())
		w.offers.Wait()
		for range buffers {
			require.NoError(t, (<-w.free).Close())
		}
	})
	return w
}

// swap puts up the next version, in a buffer that nobody has any more, and returns when
// a consumer has come for it.
func (w *swapper) swap(grace time.Duration) {
	w.t.Helper()
	var buf *vmm.Buffer
	select {
	case buf = <-w.free:
	case <-time.After(programs.Patience):
		require.FailNow(w.t, "no offer ends")
	}
	w.salt++
	require.NoError(w.t, w.st.fill(buf, swapSize, w.salt))
	meta := pattern.Meta{Count: pattern.Count(swapSize), Salt: w.salt}
	taken := make(chan struct{})
	opts := &share.OfferOptions{Grace: grace, Data: meta.Encode(), OnLease: func(l *share.Lease) {
		if l.Number() == 1 {
			close(taken)
		}
	}}
	offer, err := w.current.Supersede(buf, opts)
	require.NoError(w.t, err)
	w.current = offer
	w.offers.Go(func() {
		<-offer.Done()
		if err := offer.Err(); err != nil && !errors.Is(err, share.ErrClosed) {
			w.t.Error(err)
		}
		w.free <- buf
	})
	select {
	case <-taken:
	case <-time.After(programs.Patience):
		require.FailNow(w.t, "nobody comes for the new version")
	}
}

// swaps is how many versions there are: on a GPU a handoff takes longer.
var swaps = map[cu.Kind]int{cu.Soft: 200, cu.CUDA: 40}[cutest.Kind()]

// TestFault80_SwapUnderConsumers: processes follow one version after the other. None is
// refused, and each finds the bytes of the version that it was offered for as long as it
// is attached, also when another is killed, and another is stopped and keeps its memory
// for the grace period.
func TestFault80_SwapUnderConsumers(t *testing.T) {
	s := programs.NewScene(t)
	w := newSwapper(t, s, 3)
	followers := map[string]*programs.Process{}
	for i := range 8 {
		followers[strconv.Itoa(i+1)] = child(s, actFollower, task{Timeout: programs.Patience})
	}
	require.NoError(t, complaint(tell(followers, orderGo)))
	for n := range swaps {
		switch n {
		case swaps / 3:
			followers["1"].Kill()
			delete(followers, "1")
		case swaps / 2:
			followers["2"].Stop()
		}
		w.swap(500 * time.Millisecond)
	}
	programs.Within(t, 20*time.Second, func() bool { return len(w.free) == cap(w.free)-1 }, "a stopped consumer keeps a version for ever")
	followers["2"].Kill() // what it has mapped may have been written again
	delete(followers, "2")
	require.NoError(t, complaint(tell(followers, orderHalt)))
	for name, f := range followers {
		v, err := askUsage(f)
		require.NoError(t, err)
		require.Positive(t, v.Counts[countHandoffs], "follower %s", name)
		require.NoError(t, dismiss(f))
	}
	programs.Eventually(t, func() bool { return len(w.current.Leases()) == 0 }, "there are leases still")
}
