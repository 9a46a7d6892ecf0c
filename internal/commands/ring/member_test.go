package ring

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/sock"
)

// A member says that it lives, whatever it does, until its work is over. Its other messages
// gets through also where those words fill the queue of a parent that was halted.
func TestMemberSaysThatItLives(t *testing.T) {
	near, far, err := sock.NewPair()
	require.NoError(t, err)
	w := newWorker(far)
	w.pause = time.Millisecond
	beating := make(chan struct{})
	go func() {
		defer close(beating)
		w.beat()
	}()
	for err == nil {
		err = far.TrySend(encode(message{Kind: living}))
	}
	require.ErrorIs(t, err, sock.ErrWouldWait, "the queue is full")
	const words = 50 // of which none finds room
	said, begun := make(chan error, words), make(chan struct{}, words)
	for range words {
		go func() {
			begun <- struct{}{}
			said <- w.say(message{Kind: filled})
		}()
	}
	for range words {
		<-begun
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	lived := 0
	for heard := 0; heard < words; {
		m, _, err := receive(ctx, near)
		require.NoError(t, err)
		if m.Kind == living {
			lived++
			continue
		}
		require.Equal(t, filled, m.Kind)
		heard++
	}
	for range words {
		require.NoError(t, <-said)
	}
	for range lived { // what was in the queue is gone: these are new
		m, _, err := receive(ctx, near)
		require.NoError(t, err)
		require.Equal(t, living, m.Kind)
	}
	require.NoError(t, near.TrySend(encode(message{Kind: stop})))
	<-beating
	require.NoError(t, near.Close())
	require.NoError(t, far.Close())
	require.Equal(t, time.Second, pauseOf(time.Hour))
	require.Equal(t, 300*time.Millisecond, pauseOf(3*time.Second))
	require.Equal(t, 10*time.Millisecond, pauseOf(1))
}

// A member hears at once that it is over, also while a driver call keeps it from
// taking its orders.
func TestMemberListensWhileBusy(t *testing.T) {
	for name, c := range map[string]struct {
		last message // or none
		want error
	}{
		"peer lost":   {message{Kind: lost, Peer: 3}, peerLost(3)},
		"stopped":     {message{Kind: stop}, errStopped},
		"parent lost": {message{}, errParentLost},
	} {
		t.Run(name, func(t *testing.T) {
			near, far, err := sock.NewPair()
			require.NoError(t, err)
			w := newWorker(far)
			require.NoError(t, near.TrySend(encode(message{Kind: begin, Setup: &setup{Steps: 7}})))
			if c.last.Kind != "" {
				require.NoError(t, near.TrySend(encode(c.last)))
			} else {
				require.NoError(t, near.Close())
			}
			select {
			case <-w.over.Done():
			case <-time.After(time.Minute):
				t.Fatal("it does not listen")
			}
			require.ErrorIs(t, context.Cause(w.over), c.want)
			require.Equal(t, 7, (<-w.orders).Setup.Steps)
			require.NoError(t, near.Close())
			require.ErrorIs(t, w.say(message{Kind: ready}), c.want, "why nobody listens")
			require.NoError(t, far.Close())
		})
	}
	require.Equal(t, cli.ExitPeer, cli.ExitCode(errParentLost))
}
