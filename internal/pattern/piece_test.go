package pattern

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every piece is filled and used once, in order, and no buffer is filled while
// it is in use.
func TestFault69_StreamMovesEveryPiece(t *testing.T) {
	for _, size := range []uint64{0, 1, Piece - 1, Piece, Piece + 1, 5*Piece + 3, 1<<31 + 1, 1<<32 - 1, 1<<32 + 5} {
		var filled, used uint64
		err := Stream(t.Context(), size, func(offset uint64, b []byte) error {
			require.Equal(t, filled, offset)
			filled += uint64(len(b))
			b[0], b[len(b)-1] = byte(offset/Piece), byte(offset/Piece)
			return nil
		}, func(offset uint64, b []byte) error {
			require.Equal(t, used, offset)
			require.EqualValues(t, min(Piece, size-offset), len(b))
			require.Equal(t, byte(offset/Piece), b[0])
			require.Equal(t, byte(offset/Piece), b[len(b)-1])
			used += uint64(len(b))
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, size, filled)
		require.Equal(t, size, used)
	}
}

// Invariant 6: what was not gone through to its end is not a success.
func TestStreamEndsWithTheFirstError(t *testing.T) {
	bad := errors.New("bad")
	nothing := func(uint64, []byte) error { return nil }
	for at := uint64(0); at < 5; at++ {
		fails := func(offset uint64, b []byte) error {
			if offset == at*Piece {
				return bad
			}
			return nil
		}
		require.ErrorIs(t, Stream(t.Context(), 5*Piece, fails, nothing), bad)
		require.ErrorIs(t, Stream(t.Context(), 5*Piece, nothing, fails), bad)
	}
}

func TestStreamEndsWithItsContext(t *testing.T) {
	nothing := func(uint64, []byte) error { return nil }
	why := errors.New("why")
	for name, cause := range map[string]error{"cancelled": nil, "with a cause": why} {
		want := cause
		if want == nil {
			want = context.Canceled
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		require.ErrorIs(t, Stream(ctx, 1, nothing, nothing), want, name)

		ctx, cancel = context.WithCancelCause(t.Context())
		pieces := 0
		err := Stream(ctx, math.MaxUint64/2, nothing, func(uint64, []byte) error {
			if pieces++; pieces == 3 {
				cancel(cause)
			}
			return nil
		})
		require.ErrorIs(t, err, want, name)
	}
}

func TestMetaIsHeldAgainstTheSize(t *testing.T) {
	m := Meta{Count: 1<<33 + 1, Salt: 0xdeadbeef}
	b := m.Encode()
	require.Len(t, b, metaSize)
	got, err := DecodeMeta(b, 1<<35+1)
	require.NoError(t, err)
	require.Equal(t, m, got)
	for name, b := range map[string][]byte{
		"none": nil, "short": b[:15], "long": append(b[:16:16], 0), "other": append(b[:15:15], 1),
	} {
		_, err := DecodeMeta(b, 1<<35+1)
		require.ErrorContains(t, err, "another program", name)
	}
	for _, size := range []uint64{0, 1 << 35, 1<<35 + 5} {
		_, err := DecodeMeta(b, size)
		require.ErrorContains(t, err, "element count")
	}
}

// FuzzDecodeMeta: what is accepted fits the size, and is what Encode writes.
func FuzzDecodeMeta(f *testing.F) {
	for _, size := range []uint64{0, 1, 4, 5, 1 << 35, math.MaxUint64} {
		f.Add(Meta{Count(size), 7}.Encode(), size)
	}
	f.Add([]byte(nil), uint64(0))
	f.Add(make([]byte, metaSize+1), uint64(0))
	f.Fuzz(func(t *testing.T, b []byte, size uint64) {
		m, err := DecodeMeta(b, size)
		switch {
		case err != nil:
		case m.Count != Count(size):
			t.Fatalf("%d integers in %d bytes", m.Count, size)
		case string(m.Encode()) != string(b):
			t.Fatalf("%+v\nwas   %x\nis now %x", m, b, m.Encode())
		}
	})
}
