package share

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/serve"
)

// Requests use what is current while versions come and go, also after Follow has ended, and each version is
// closed behind its last use.
func TestCurrent(t *testing.T) {
	dev, ctx, srv := listening(t)
	var c Current
	none, done := c.Use()
	require.Nil(t, none)
	done()
	put(t, srv, filled(t, ctx, 1))
	life, stop := context.WithCancel(t.Context())
	swapped, over := make(chan *Attachment), make(chan struct{})
	go func() {
		defer close(over)
		for att, err := range Follow(life, srv.Path(), "data", dev, &AttachOptions{Overlap: true}) {
			if err != nil {
				return
			}
			if err := c.Swap(att); err != nil {
				t.Error(err)
			}
			swapped <- att
		}
	}()
	first := <-swapped
	requests, halt := sync.WaitGroup{}, make(chan struct{})
	for range 4 {
		requests.Go(func() {
			for !serve.IsClosed(halt) {
				att, done := c.Use()
				word := make([]uint32, 1)
				if err := cu.CopyToHost(ctx, word, att.Ptr()); err != nil {
					t.Error(err)
				}
				done()
				done()
			}
		})
	}
	used, release := c.Use()
	require.Same(t, first, used)
	for v := range uint32(20) {
		replace(t, srv, filled(t, ctx, v+2))
		<-swapped
	}
	again, end := c.Use()
	require.NoError(t, c.Swap(again), "it is current already")
	end()
	require.NotZero(t, first.Ptr(), "it is in use")
	release()
	require.Eventually(t, func() bool { return first.Ptr() == 0 }, 30*time.Second, time.Millisecond)

	last, release := c.Use()
	stop()
	<-over
	word := make([]uint32, 1)
	require.NoError(t, cu.CopyToHost(ctx, word, last.Ptr()), "Follow has ended")
	require.EqualValues(t, 21, word[0])
	close(halt)
	requests.Wait()
	require.ErrorIs(t, c.Close(briefly(t)), context.DeadlineExceeded)
	require.NotZero(t, last.Ptr())
	release()
	require.NoError(t, c.Close(soon(t)))
	require.Zero(t, last.Ptr())
}

// An attachment that cannot be held is not taken.
func TestCurrentRefuses(t *testing.T) {
	dev, ctx, srv := listening(t)
	put(t, srv, newBuffer(t, ctx, 1))
	att := attached(t, srv, "data", dev)
	require.NoError(t, att.Close())
	var c Current
	require.ErrorIs(t, c.Swap(att), ErrClosed)
	require.Error(t, c.Swap(nil))
	require.NoError(t, c.Close(soon(t)))
}

// A server that may not wait says that it restarts all the same.
func TestShutdownThatMayNotWait(t *testing.T) {
	dev, ctx, srv := listening(t)
	put(t, srv, newBuffer(t, ctx, 1))
	att := attached(t, srv, "data", dev)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, srv.Shutdown(over), context.Canceled)
	require.ErrorIs(t, awaitDone(t, att), ErrRestarting)
}
