package pattern

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// The transcript's formula, in wider arithmetic than the package's.
func formula(i uint64, salt uint32) uint32 {
	const wide = 1 << 32
	v := (i % wide * 2 % wide) + 1337
	return uint32(v%wide) ^ 0xDEADBEEF ^ salt
}

func TestFault69_PatternIsTheTranscripts(t *testing.T) {
	require.EqualValues(t, 1337^0xDEADBEEF, At(0, 0))
	require.EqualValues(t, 1339^0xDEADBEEF, At(1, 0))
	require.EqualValues(t, 1337^0xDEADBEEF^0x55, At(0, 0x55))
	for _, i := range []uint64{0, 1, 2, 1 << 30, 1<<31 - 1, 1 << 31, 1<<32 - 1, 1 << 32, 1<<32 + 1, 1<<34 + 7, math.MaxUint64} { // FAULTS 69
		for _, salt := range []uint32{0, 1, math.MaxUint32} {
			require.Equal(t, formula(i, salt), At(i, salt), "index %d", i)
		}
	}
}

func TestCountTakesInAPartialInteger(t *testing.T) {
	for size, want := range map[uint64]uint64{
		0: 0, 1: 1, 3: 1, 4: 1, 5: 2, 7: 2, 8: 2, 1 << 20: 1 << 18, 1<<34 + 1: 1<<32 + 1,
		math.MaxUint64: 1 << 62, math.MaxUint64 - 3: 1<<62 - 1,
	} {
		require.Equal(t, want, Count(size), "%d bytes", size)
	}
}

func TestFillWritesEachIntegerLittleEndian(t *testing.T) {
	for _, size := range []int{0, 1, 2, 3, 4, 5, 7, 8, 4095, share - 1, share, share + 1, 3*share + 5} {
		for _, first := range []uint64{0, 5, 1<<32 - 2, 1 << 40} {
			b := make([]byte, size+8)
			copy(b[size:], "sentinel")
			Fill(b[:size], first, 7)
			require.Equal(t, "sentinel", string(b[size:]))
			want := make([]byte, 0, size+4)
			for i := first; len(want) < size; i++ {
				want = binary.LittleEndian.AppendUint32(want, formula(i, 7))
			}
			require.True(t, string(want[:size]) == string(b[:size]), "%d bytes from %d", size, first)
			require.Zero(t, Check(b[:size], first, 7))
		}
	}
}

// Invariant 6, FAULTS 65: each single bit, at its index, with both values.
func TestFault65_EverySingleFlippedBitIsFound(t *testing.T) {
	for size := 1; size <= 19; size++ {
		b := make([]byte, size)
		const first = 1<<32 - 2 // the index needs 33 bits on the way
		Fill(b, first, 3)
		for bit := range size * 8 {
			b[bit/8] ^= 1 << (bit % 8)
			m := Check(b, first, 3)
			b[bit/8] ^= 1 << (bit % 8)
			require.EqualValues(t, 1, m.Wrong, "bit %d of %d bytes", bit, size)
			require.EqualValues(t, first+uint64(bit/32), m.Index)
			require.EqualValues(t, uint32(1)<<(bit%32), m.Want^m.Got)
			require.Equal(t, formula(m.Index, 3)&maskOf(size, bit/32), m.Want)
		}
		require.Zero(t, Check(b, first, 3))
	}
}

// maskOf has the bits of the integer at index i that size bytes hold.
func maskOf(size, i int) uint32 {
	if n := size - 4*i; n < 4 {
		return 1<<(8*n) - 1
	}
	return math.MaxUint32
}

// The same in data large enough to be checked on several cores.
func TestAFlippedBitAmongMillionsIsFound(t *testing.T) {
	b := make([]byte, 5*share+3)
	const first = 1 << 33
	Fill(b, first, 9)
	bits := []int{0, 8*len(b) - 1, 8*share - 1, 8 * share, 8*5*share - 1, 8 * 5 * share}
	r := rand.New(rand.NewPCG(1, 2))
	for range 24 {
		bits = append(bits, r.IntN(8*len(b)))
	}
	for _, bit := range bits {
		b[bit/8] ^= 1 << (bit % 8)
		m := Check(b, first, 9)
		b[bit/8] ^= 1 << (bit % 8)
		require.EqualValues(t, 1, m.Wrong, "bit %d", bit)
		require.EqualValues(t, first+bit/32, m.Index)
	}
}

func TestTheFirstOfManyIsNamedAndAllAreCounted(t *testing.T) {
	b := make([]byte, 4*share+1)
	Fill(b, 0, 0)
	wrong := map[int]bool{}
	r := rand.New(rand.NewPCG(3, 4))
	least := math.MaxInt
	for range 1000 {
		i := 17 + r.IntN(len(b)/4-17)
		b[4*i+2] ^= 0x80
		if wrong[i] = !wrong[i]; wrong[i] {
			continue
		}
		delete(wrong, i)
	}
	for i := range wrong {
		least = min(least, i)
	}
	m := Check(b, 0, 0)
	require.EqualValues(t, len(wrong), m.Wrong)
	require.EqualValues(t, least, m.Index)
	require.Equal(t, m.Want^0x800000, m.Got)
}

// FAULTS 67: data of an earlier run, or zeros (D9 of docs/driver-facts.md), is all wrong.
func TestFault67_OtherDataIsAllWrong(t *testing.T) {
	b := make([]byte, 4098)
	require.EqualValues(t, 1025, Check(b, 0, 0).Wrong)
	Fill(b, 0, 1)
	require.EqualValues(t, 1024, Check(b, 0, 1<<31|1).Wrong, "the salt's top bit is not in the two bytes of the last")
	require.EqualValues(t, 1025, Check(b, 0, 2).Wrong)
	require.EqualValues(t, 1025, Check(b, 1, 1).Wrong, "shifted by one")
}

func TestMismatchesAddUp(t *testing.T) {
	a, b, c := Mismatch{2, 7, 1, 2}, Mismatch{3, 5, 3, 4}, Mismatch{1, 9, 5, 6}
	for _, order := range [][]Mismatch{{a, b, c}, {c, b, a}, {b, a, c}, {{}, a, {}, b, c, {}}} {
		var m Mismatch
		for _, o := range order {
			m.Add(o)
		}
		require.Equal(t, Mismatch{6, 5, 3, 4}, m)
	}
	var none Mismatch
	none.Add(Mismatch{})
	require.Zero(t, none)
	var err error = &Mismatch{6, 1 << 33, 0xdeadbeef, 0x1}
	require.Equal(t, "data differs: first at index 8589934592, want 0xdeadbeef, got 0x00000001; 6 integers are wrong", err.Error())
	var m *Mismatch
	require.True(t, errors.As(err, &m))
}

func BenchmarkFill(b *testing.B) { benchmark(b, func(p []byte) { Fill(p, 0, 1) }) }

func BenchmarkCheck(b *testing.B) { benchmark(b, func(p []byte) { Check(p, 0, 1) }) }

func benchmark(b *testing.B, f func([]byte)) {
	p := make([]byte, 16<<20)
	Fill(p, 0, 1)
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		f(p)
	}
}
