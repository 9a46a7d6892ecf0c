package handoff

import (
	"context"
	"testing"
	"time"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/share"
)

// TestFault18_PeerDiesBeforeItWrites: a stream waits for a value in shared memory
// that its peer was to write. The peer is killed. Waiting for the stream ends with
// its deadline; who writes the value itself frees the stream (D20b), and then
// everything can be closed. The first time shows what a driver keeps for good.
func TestFault18_PeerDiesBeforeItWrites(t *testing.T) {
	programs.Parallel(t)
	s := programs.NewScene(t)
	waitForTheDead(t, s)
	s.Settle()
	waitForTheDead(t, s)
	s.Reclaimed()
}

func waitForTheDead(t *testing.T, s *programs.Scene) {
	t.Helper()
	producer := s.Serving("-access", "rw")
	att := ok(s.Attach(share.AttachOptions{Access: cu.ReadWrite}))(t)
	ctx := ok(att.Buffer().Device().PrimaryContext())(t)
	waits, writes := newStream(t, ctx), newStream(t, ctx)
	free := func() error { return writes.WriteValue32(att.Buffer().Ptr(), 1, cu.WriteDefault) }
	late := time.AfterFunc(programs.Patience, func() { _ = free() }) // so that a failure ends
	defer late.Stop()

	require.NoError(t, waits.WaitValue32(att.Buffer().Ptr(), 1, cu.WaitEQ))
	s.Kill(producer)
	requireOrphaned(t, att)
	short, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, waits.Synchronize(short), context.DeadlineExceeded)
	done := ok(waits.Query())(t)
	require.False(t, done)

	require.NoError(t, free())
	long, cancel := context.WithTimeout(context.Background(), programs.Patience)
	defer cancel()
	require.NoError(t, waits.Synchronize(long))
	require.NoError(t, waits.Close())
	require.NoError(t, writes.Close())
	require.NoError(t, att.Close())
	require.NoError(t, ctx.Close())
}

func newStream(t *testing.T, ctx *cu.Context) *cu.Stream {
	t.Helper()
	stream := ok(ctx.NewStream())(t)
	return stream
}
