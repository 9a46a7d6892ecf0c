package channel

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
)

// lieAt are words of the cursors, and liesOf what may be stored there beside small numbers.
var (
	lieAt = []int{returnedAt(0), returnedAt(1), returnedAt(2), returnedAt(3), offWanted, offNoted, offReleased, offPublished, offReaderState, offReaderPolls, offWriterPolls,
		offEntries + entryStamp, offEntries + entrySlot, offEntries + entrySequence, offEntries + EntrySize + entryStamp, offEntries + EntrySize + entryLength}
	liesOf = []uint64{4, 1 << 32, given, 1<<64 - 1}
)

// A liar's cursors, whoever stores what there, make an end of that reader at most: the writer goes on, and another
// reader gets every frame whole, those too that it keeps meanwhile. What the liar's calls return is an error, or a frame.
func FuzzAnyOrderCursors(f *testing.F) {
	ctx, srv, w := newChannel(f, 4, 64, WithAnyOrder(), WithDropAfter(time.Millisecond))
	for _, seed := range []string{"", "put put next put release", "\x00\x01\x00\x01\x00\x01", "\x03\x00\x04\x00\x00\x00", "\x00\x03\x04\x04\x00\x00\x00\x00"} {
		f.Add([]byte(seed))
	}
	for i := range lieAt {
		f.Add([]byte{0, 0, 1, 3, byte(i), byte(i % 12), 0, 2, 0, 1, 0, 0})
		f.Add([]byte{0, 0, 1, 1, 3, byte(i), 11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}) // the writer has to wait
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		l := &lying{t: t, ctx: ctx, w: w, in: in}
		l.other = ok(Open(soon(t), srv.Path(), "frames", ctx))(t)
		liar, err := Open(soon(t), srv.Path(), "frames", ctx)
		require.NoError(t, err)
		l.liar = liar
		for range 60 {
			if !l.step() {
				break
			}
		}
		require.NoError(t, l.other.Close())
		require.NoError(t, l.liar.Close())
	})
}

// A lying goes through an input.
type lying struct {
	t           *testing.T
	ctx         *cu.Context
	w           *Writer
	other, liar *Reader
	in          []byte
	kept, held  []Frame // the other's, the liar's
}

// take is the next byte of the input, below n.
func (l *lying) take(n int) int {
	if len(l.in) == 0 {
		return 0
	}
	b := l.in[0]
	l.in = l.in[1:]
	return int(b) % n
}

// step does what the input says next. It is false at the end of that.
func (l *lying) step() bool {
	if len(l.in) == 0 {
		return false
	}
	switch l.take(4) {
	case 0:
		l.put()
	case 1:
		soon, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		f, err := l.liar.Next(soon)
		cancel()
		if l.expected(err) == nil {
			l.held = append(l.held, f)
		}
	case 2:
		if len(l.held) > 0 {
			i := l.take(len(l.held))
			_ = l.expected(l.liar.Release(l.held[i]))
		}
	case 3:
		at, v := lieAt[l.take(len(lieAt))], uint64(l.take(12))
		if v >= 8 {
			v = liesOf[v-8]
		}
		l.liar.store(at, v)
	}
	return true
}

// put publishes a frame, which the other reader takes. It keeps one, so the liar keeps more where the writer has to wait.
func (l *lying) put() {
	s := put(l.t, l.ctx, l.w)
	l.kept = append(l.kept, requireFrame(l.t, l.ctx, l.other, s.Sequence))
	for len(l.kept) > 1 {
		i := l.take(len(l.kept))
		requireBytes(l.t, l.ctx, l.kept[i])
		require.NoError(l.t, l.other.Release(l.kept[i]))
		l.kept = append(l.kept[:i], l.kept[i+1:]...)
	}
}

// expected returns err, which is one that a liar may get.
func (l *lying) expected(err error) error {
	for _, may := range []error{ErrCursor, ErrDropped, ErrOrder, context.DeadlineExceeded, ErrLost, ErrEnded} {
		if errors.Is(err, may) {
			return err
		}
	}
	require.NoError(l.t, err)
	return nil
}
