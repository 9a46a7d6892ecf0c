package main

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/sock"
)

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
