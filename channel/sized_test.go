package channel

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// A copy or fill knows how large a slot is, and a frame, which may be smaller.
func TestCopyOfMoreThanAFrame(t *testing.T) {
	ctx, w, r := newPair(t, 2, 64)
	slot := ok(w.Acquire(soon(t)))(t)
	require.EqualValues(t, 64, slot.Size())
	require.ErrorIs(t, cu.Fill(ctx, slot, uint8(1), 65), cu.ErrTooShort)
	require.ErrorIs(t, cu.CopyToDevice(ctx, slot, make([]byte, 65)), cu.ErrTooShort)
	require.NoError(t, cu.Fill(ctx, slot, uint8(1), 64))
	require.NoError(t, w.Publish(slot, Meta{Size: 40}))
	f := ok(r.Next(soon(t)))(t)
	require.EqualValues(t, 40, f.Size())
	require.ErrorIs(t, cu.CopyToHost(ctx, make([]byte, 41), f), cu.ErrTooShort)
	require.NoError(t, cu.CopyToHost(ctx, make([]byte, 40), f))
	require.NoError(t, r.Release(f))
	require.Zero(t, Frame{}.Size())
	require.Zero(t, Slot{}.Size())
}

// A frame has 288 bytes, which a copy that is given a Frame allocates; one that is given its address does not.
func TestCopyOfAFrameByPointerDoesNotAllocate(t *testing.T) {
	if cutest.RaceDetector {
		t.Skip("the race detector allocates")
	}
	f, s, b := &Frame{ptr: 4096, size: 40}, hollowStream(t), make([]byte, 40)
	var err error
	require.Zero(t, testing.AllocsPerRun(1000, func() { err = cu.CopyToHostAsync(s, b, f) }))
	require.NoError(t, err)
	require.ErrorIs(t, cu.CopyToHostAsync(s, make([]byte, 41), f), cu.ErrTooShort)
}
