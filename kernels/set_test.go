package kernels_test

import (
	"context"
	"errors"
	"io"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/pattern"
	"github.com/gpufd/gpufd/kernels"
)

// A bench is a set of kernels, a stream and memory to run them on.
type bench struct {
	*kernels.Set
	ctx *cu.Context
	s   *cu.Stream
	cu.DevicePtr
}

func newBench(t testing.TB, size uint64) bench {
	t.Helper()
	ctx := cutest.Context(t, cutest.Device(t))
	k := untilEnd(t, ok(kernels.Load(ctx))(t))
	m := untilEnd(t, ok(ctx.Alloc(size))(t))
	return bench{k, ctx, newStream(t, ctx), m.Ptr()}
}

// soon is a deadline for what should happen at once.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func (b bench) read(t testing.TB, p cu.DevicePtr, n int) []byte {
	t.Helper()
	got := make([]byte, n)
	require.NoError(t, errors.Join(cu.CopyToHostAsync(b.s, got, p), b.s.Synchronize(context.Background())))
	return got
}

func (b bench) write(t testing.TB, p cu.DevicePtr, data []byte) {
	t.Helper()
	require.NoError(t, errors.Join(cu.CopyToDeviceAsync(b.s, p, data), b.s.Synchronize(context.Background())))
}

// flip inverts one bit.
func (b bench) flip(t testing.TB, bit uint64) {
	t.Helper()
	p := b.Add(bit / 8)
	b.write(t, p, []byte{b.read(t, p, 1)[0] ^ 1<<(bit%8)})
}

// sizes are those at which kernels change their ways.
var sizes = []int{0, 1, 15, 16, 17, 4095, 1<<20 + 3}

// random are bytes that are the same in every run.
func random(n int, seed uint64) []byte {
	b, r := make([]byte, n), rand.New(rand.NewPCG(seed, 0))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

const room = 1<<20 + 64

func TestFillWritesThePattern(t *testing.T) {
	b := newBench(t, room)
	for _, size := range sizes {
		for _, first := range []uint64{0, 1<<32 - 2} { // the index needs 33 bits on the way: FAULTS 69
			want := random(size+16, 1)
			b.write(t, b.DevicePtr, want)
			require.NoError(t, b.FillAsync(b.s, b.DevicePtr, uint64(size), first, 7))
			pattern.Fill(want[:size], first, 7)
			require.True(t, string(want) == string(b.read(t, b.DevicePtr, len(want))), "%d bytes from %d, and what follows them", size, first)
			require.Zero(t, ok(b.Check(soon(t), b.s, b.DevicePtr, uint64(size), first, 7))(t), "%d bytes", size)
		}
	}
}

// Invariant 6, FAULTS 65: what the kernel finds is what the host finds.
//
//fault:rows 65
func TestCheckFindsEverySingleFlippedBit(t *testing.T) {
	b := newBench(t, room)
	const first = 1<<32 - 2
	for _, size := range []int{1, 15, 16, 17, 23} {
		require.NoError(t, b.FillAsync(b.s, b.DevicePtr, uint64(size), first, 3))
		for bit := range uint64(size * 8) {
			b.flip(t, bit)
			host := kernels.Mismatch(pattern.Check(b.read(t, b.DevicePtr, size), first, 3))
			require.EqualValues(t, 1, host.Wrong)
			m := ok(b.Check(soon(t), b.s, b.DevicePtr, uint64(size), first, 3))(t)
			require.Equal(t, host, m, "bit %d of %d bytes", bit, size)
			b.flip(t, bit)
		}
	}
}

func TestCheckFindsTheFirstOfMany(t *testing.T) {
	b := newBench(t, room)
	for _, size := range []int{4095, 1<<20 + 3} {
		require.NoError(t, b.FillAsync(b.s, b.DevicePtr, uint64(size), 5, 9))
		n := uint64(size) * 8
		for _, bit := range []uint64{n - 1, n / 2, n/2 + 32, n / 3, n - 25, 0} { // the first is found whichever is last
			b.flip(t, bit)
			host := kernels.Mismatch(pattern.Check(b.read(t, b.DevicePtr, size), 5, 9))
			m := ok(b.Check(soon(t), b.s, b.DevicePtr, uint64(size), 5, 9))(t)
			require.Equal(t, host, m, "bit %d of %d bytes", bit, size)
		}
	}
}

// FAULTS 66, 67: data of an earlier run, or zeros (D9 of docs/driver-facts.md), is all wrong.
func TestCheckOfOtherData(t *testing.T) {
	b := newBench(t, room)
	const size = 40007
	require.NoError(t, b.FillBytesAsync(b.s, b.DevicePtr, size, 0))
	m := ok(b.Check(soon(t), b.s, b.DevicePtr, size, 0, 1))(t)
	require.Equal(t, kernels.Mismatch(pattern.Check(make([]byte, size), 0, 1)), m)
	require.EqualValues(t, pattern.Count(size), m.Wrong)
	require.NoError(t, b.FillAsync(b.s, b.DevicePtr, size, 0, 1))
	require.EqualValues(t, pattern.Count(size), ok(b.Check(soon(t), b.s, b.DevicePtr, size, 0, 2))(t).Wrong)
}

func TestChecksumIsTheHosts(t *testing.T) {
	b := newBench(t, room)
	for i, size := range sizes {
		data := random(size, uint64(i))
		b.write(t, b.DevicePtr, data)
		sum := ok(b.Checksum(soon(t), b.s, b.DevicePtr, uint64(size)))(t)
		require.Equal(t, kernels.Checksum(data), sum, "%d bytes", size)
		if size > 0 {
			b.flip(t, uint64(8*size-1))
			require.NotEqual(t, sum, ok(b.Checksum(soon(t), b.s, b.DevicePtr, uint64(size)))(t))
		}
	}
	require.EqualValues(t, 0, kernels.Checksum(nil))
	require.NotEqual(t, kernels.Checksum(make([]byte, 8)), kernels.Checksum(make([]byte, 16)), "zeros count")
}

func TestFillBytesAndCopy(t *testing.T) {
	b := newBench(t, 2*room)
	far := b.Add(room)
	for i, size := range sizes {
		data := random(size+16, uint64(i))
		b.write(t, b.DevicePtr, data)
		b.write(t, far, make([]byte, size+16))
		require.NoError(t, b.CopyAsync(b.s, far, b.DevicePtr, uint64(size)))
		want := append(data[:size:size], make([]byte, 16)...)
		require.True(t, string(want) == string(b.read(t, far, size+16)), "%d bytes copied", size)

		require.NoError(t, b.FillBytesAsync(b.s, far.Add(1), uint64(size), 0xa5)) // at any address
		want = append([]byte{want[0]}, want[1:]...)
		for i := range size {
			want[i+1] = 0xa5
		}
		require.True(t, string(want) == string(b.read(t, far, size+16)), "%d bytes filled", size)
	}
}

func TestVectors(t *testing.T) {
	const n = 5000
	b := newBench(t, 3*4*n)
	r := rand.New(rand.NewPCG(1, 2))
	x, y := make([]float32, n), make([]float32, n)
	for i := range x {
		x[i], y[i] = float(r), float(r)
	}
	px, py, pz := b.DevicePtr, b.Add(4*n), b.Add(8*n)
	require.NoError(t, errors.Join(cu.CopyToDeviceAsync(b.s, px, x), b.s.Synchronize(t.Context())))
	require.NoError(t, errors.Join(cu.CopyToDeviceAsync(b.s, py, y), b.s.Synchronize(t.Context())))
	require.NoError(t, b.VectorAddAsync(b.s, px, py, pz, n))
	const a = float32(1.1)
	require.NoError(t, b.SaxpyAsync(b.s, a, px, py, n))
	sum, axpy := make([]float32, n), make([]float32, n)
	require.NoError(t, errors.Join(cu.CopyToHostAsync(b.s, sum, pz), b.s.Synchronize(t.Context())))
	require.NoError(t, errors.Join(cu.CopyToHostAsync(b.s, axpy, py), b.s.Synchronize(t.Context())))
	for i := range x {
		require.Equal(t, math.Float32bits(x[i]+y[i]), math.Float32bits(sum[i]), "%g + %g", x[i], y[i])
		require.Equal(t, math.Float32bits(fma(a, x[i], y[i])), math.Float32bits(axpy[i]), "%g * %g + %g", a, x[i], y[i])
	}
}

// float is a finite number of any size, often too small to be normal.
func float(r *rand.Rand) float32 {
	for {
		f := math.Float32frombits(r.Uint32())
		if r.IntN(4) == 0 {
			f = math.Float32frombits(r.Uint32() & 0x80ffffff)
		}
		if f == f && f < 1e38 && f > -1e38 && f != 0 {
			return f
		}
	}
}

// fma is a x + y, rounded once.
func fma(a, x, y float32) float32 {
	const exact = 1000
	b := func(f float32) *big.Float { return new(big.Float).SetPrec(exact).SetFloat64(float64(f)) }
	p := b(a)
	p.Mul(p, b(x))
	f, _ := p.Add(p, b(y)).Float32()
	return f
}

// FAULTS 69: more than 4 GiB, on a GPU.
func TestMoreThan32BitsOfBytes(t *testing.T) {
	if cutest.Kind() != cu.CUDA || testing.Short() {
		t.Skip("the software driver is not made for gibibytes")
	}
	const size = 5<<30 + 3
	b := newBench(t, size+13)
	require.NoError(t, b.FillAsync(b.s, b.DevicePtr, size, 1<<31, 5))
	require.Zero(t, ok(b.Check(soon(t), b.s, b.DevicePtr, size, 1<<31, 5))(t))
	tail := make([]byte, 1<<20+3)
	pattern.Fill(tail, 1<<31+(size-uint64(len(tail)))/4, 5)
	require.True(t, string(tail) == string(b.read(t, b.Add(size-uint64(len(tail))), len(tail))))
	for _, bit := range []uint64{8*size - 1, 8*(1<<32) + 5, 8*(1<<32) - 1, 8 << 31} {
		b.flip(t, bit)
		m := ok(b.Check(soon(t), b.s, b.DevicePtr, size, 1<<31, 5))(t)
		require.EqualValues(t, 1, m.Wrong, "bit %d", bit)
		require.EqualValues(t, 1<<31+bit/32, m.Index)
		require.EqualValues(t, uint32(1)<<(bit%32), m.Want^m.Got)
		b.flip(t, bit)
	}
	sum := ok(b.Checksum(soon(t), b.s, b.DevicePtr, size))(t)
	b.flip(t, 8*(1<<32)+5)
	require.NotEqual(t, sum, ok(b.Checksum(soon(t), b.s, b.DevicePtr, size))(t))
}

func TestSetRefuses(t *testing.T) {
	b := newBench(t, 64)
	for _, err := range []error{
		b.FillAsync(b.s, b.Add(8), 8, 0, 0), b.CopyAsync(b.s, b.Add(16), b.Add(1), 8), b.CopyAsync(b.s, b.Add(1), b.DevicePtr, 8),
		b.VectorAddAsync(b.s, b.DevicePtr, b.Add(2), b.DevicePtr, 1), b.SaxpyAsync(b.s, 1, b.DevicePtr, b.Add(1), 1),
		errOf(b.Check(soon(t), b.s, b.Add(4), 8, 0, 0)), errOf(b.Checksum(soon(t), b.s, b.Add(4), 8)),
	} {
		require.ErrorIs(t, err, kernels.ErrAlignment)
	}
	require.NoError(t, b.Close())
	require.NoError(t, b.Close())
	require.ErrorIs(t, b.FillAsync(b.s, b.DevicePtr, 8, 0, 0), cu.ErrClosed)
	require.ErrorIs(t, errOf(b.Check(soon(t), b.s, b.DevicePtr, 8, 0, 0)), cu.ErrClosed)
	require.NoError(t, (*kernels.Set)(nil).Close())
}

// Memory that was closed is at address 0. Work there would lose the context: it is refused
// before the driver hears of it. Where there is no work nothing is wrong.
func TestSetRefusesClosedMemory(t *testing.T) {
	b := newBench(t, 64)
	at := func(k *kernels.Set, there cu.DevicePtr, n uint64) map[string]error {
		return map[string]error{
			"FillAsync":       k.FillAsync(b.s, 0, n, 0, 0),
			"Check":           errOf(k.Check(soon(t), b.s, 0, n, 0, 0)),
			"Checksum":        errOf(k.Checksum(soon(t), b.s, 0, n)),
			"FillBytesAsync":  k.FillBytesAsync(b.s, 0, n, 1),
			"CopyAsync to":    k.CopyAsync(b.s, 0, there, n),
			"CopyAsync from":  k.CopyAsync(b.s, there, 0, n),
			"VectorAddAsync":  k.VectorAddAsync(b.s, 0, there, there, n),
			"VectorAddAsync2": k.VectorAddAsync(b.s, there, there, 0, n),
			"SaxpyAsync x":    k.SaxpyAsync(b.s, 1, 0, there, n),
			"SaxpyAsync y":    k.SaxpyAsync(b.s, 1, there, 0, n),
		}
	}
	for name, err := range at(b.Set, b.DevicePtr, 8) {
		require.ErrorIs(t, err, cu.ErrClosed, name)
		require.ErrorContains(t, err, "address 0", name)
	}
	for name, err := range at(b.Set, b.DevicePtr, 0) {
		require.NoError(t, err, name)
	}
	require.NoError(t, b.s.Synchronize(soon(t)), "the context is as before")
	for _, k := range []*kernels.Set{nil, {}} {
		for name, err := range at(k, b.DevicePtr, 8) {
			require.ErrorIs(t, err, cu.ErrClosed, name)
		}
		require.NoError(t, k.Close())
	}
	require.Error(t, errOf(kernels.Load(nil)))
}

// ok returns what a call returned, and ends the test if that failed: ok(ctx.NewStream())(t).
func ok[T any](v T, err error) func(t testing.TB, about ...any) T {
	return func(t testing.TB, about ...any) T {
		t.Helper()
		require.NoError(t, err, about...)
		return v
	}
}

// untilEnd returns c, which is closed when t ends.
func untilEnd[C io.Closer](t testing.TB, c C) C {
	t.Helper()
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// errOf returns the error of a call that returns something else, too.
func errOf[T any](_ T, err error) error { return err }

// A check that is given up leaves nothing that a later one could take for its
// own.
func TestCheckThatIsGivenUp(t *testing.T) {
	b := newBench(t, room)
	const size = 4096
	require.NoError(t, b.FillAsync(b.s, b.DevicePtr, size, 0, 1))
	word := b.Add(1 << 20)
	b.write(t, word, make([]byte, 4))
	require.NoError(t, b.s.WaitValue32(word, 1, cu.WaitEQ))
	for range 3 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		_, err := b.Check(ctx, b.s, b.DevicePtr, size, 0, 2)
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	all, free := b.Answers()
	require.Equal(t, 3, all)
	require.Zero(t, free, "their kernels are still to come")
	other := newStream(t, b.ctx)
	require.Zero(t, ok(b.Check(soon(t), other, b.DevicePtr, size, 0, 1))(t))
	require.NoError(t, other.WriteValue32(word, 1, cu.WriteDefault))
	require.NoError(t, b.s.Synchronize(soon(t)))
	require.Zero(t, ok(b.Check(soon(t), other, b.DevicePtr, size, 0, 1))(t))
}
