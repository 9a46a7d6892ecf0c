package kernels_test

import (
	"context"
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/kernels"
)

// digestVectors are data and their digests, for other programs too: testdata/digests.py
// computes them by the package's documentation alone.
//
//go:embed testdata/digests.json
var digestVectors []byte

// vectorData is what the vectors are of: n bytes that begin with those of seed.
func vectorData(n int, seed uint32) []byte {
	b, x := make([]byte, n), seed
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

func TestDigestVectors(t *testing.T) {
	var known struct {
		Algorithm string
		Vectors   []struct {
			Bytes  int
			Seed   uint32
			Digest string
		}
	}
	require.NoError(t, json.Unmarshal(digestVectors, &known))
	require.Equal(t, kernels.DigestAlgorithm, known.Algorithm)
	require.Greater(t, len(known.Vectors), 15)
	for _, v := range known.Vectors {
		require.Equal(t, v.Digest, kernels.DigestOf(vectorData(v.Bytes, v.Seed)).String(), "%d bytes, seed %d", v.Bytes, v.Seed)
	}
}

// digestSizes are those at which the digest changes its ways.
var digestSizes = []int{0, 1, 7, 8, 9, 15, 16, 17, 24, 25, 4095, 4097, 1<<20 + 3}

// The kernel computes what the host does, wherever the part lies in the data, and
// looks at no byte outside.
func TestDigestIsTheHosts(t *testing.T) {
	b := newBench(t, room)
	for i, size := range digestSizes {
		for _, offset := range []uint64{0, 8, 1 << 40, math.MaxUint64 - 1<<21 - 7} {
			if size > 1<<16 && offset != 8 {
				continue // once is enough, on a CPU
			}
			data := random(size+16, uint64(i))
			b.write(t, b.DevicePtr, data)
			var want, kernel, set kernels.Digester
			require.NoError(t, want.Add(offset, data[:size]))
			p := kernels.Part{Ptr: b.DevicePtr, Offset: offset, Bytes: uint64(size)}
			require.NoError(t, b.KernelDigestPart(soon(t), b.s, &kernel, p))
			require.NoError(t, b.DigestPart(soon(t), b.s, &set, p))
			require.Equal(t, want.Digest(), kernel.Digest(), "%d bytes at %d", size, offset)
			require.Equal(t, want.Digest(), set.Digest(), "%d bytes at %d", size, offset)
		}
		d, err := b.Digest(soon(t), b.s, b.DevicePtr, uint64(size))
		require.NoError(t, err)
		require.Equal(t, kernels.DigestOf(b.read(t, b.DevicePtr, size)), d)
	}
}

// Few threads have many words each, and take several at a time.
func TestDigestByFewThreads(t *testing.T) {
	b := newBench(t, room)
	mod, err := b.ctx.LoadModule([]byte(kernels.DigestPTX))
	require.NoError(t, err)
	defer func() { require.NoError(t, mod.Close()) }()
	f, err := mod.Function("digest")
	require.NoError(t, err)
	result := b.Add(1 << 20)
	for _, size := range []uint64{9, 16 * 3, 16 * 4, 16*5 + 1, 65537, 1<<17 + 24} {
		data := random(int(size), size)
		b.write(t, b.DevicePtr, data)
		for _, shape := range [][2]uint32{{1, 1}, {1, 2}, {2, 33}, {3, 128}, {1, 1024}} {
			b.write(t, result, make([]byte, 16))
			cfg := cu.LaunchConfig{Grid: cu.Dim3{X: shape[0]}, Block: cu.Dim3{X: shape[1]}}
			require.NoError(t, f.Launch(b.s, cfg, b.DevicePtr, size, uint64(0), result))
			require.NoError(t, b.s.Synchronize(soon(t)))
			sums := b.read(t, result, 16)
			got := kernels.DigestOfSums(binary.LittleEndian.Uint64(sums), binary.LittleEndian.Uint64(sums[8:]), size)
			require.Equal(t, kernels.DigestOf(data), got, "%d bytes, grid and block %v", size, shape)
		}
	}
}

// Invariant 6: what the kernel computes changes with each single bit.
func TestDigestChangesWithEachBit(t *testing.T) {
	const size = 43
	b := newBench(t, room)
	data := vectorData(size, 1)
	digest := func() kernels.Digest {
		var d kernels.Digester
		b.write(t, b.DevicePtr, data)
		require.NoError(t, b.KernelDigestPart(soon(t), b.s, &d, kernels.Part{Ptr: b.DevicePtr, Bytes: size}))
		require.Equal(t, kernels.DigestOf(data), d.Digest())
		return d.Digest()
	}
	seen := map[kernels.Digest]int{digest(): -1}
	for bit := range 8 * size {
		data[bit/8] ^= 1 << (bit % 8)
		d := digest()
		require.NotContains(t, seen, d, "bit %d", bit)
		seen[d] = bit
		data[bit/8] ^= 1 << (bit % 8)
	}
}

// Zeros count, and so does where everything lies.
func TestDigestOfLikeData(t *testing.T) {
	seen := map[kernels.Digest]string{}
	differs := func(name string, b []byte) {
		t.Helper()
		d := kernels.DigestOf(b)
		require.Empty(t, seen[d], name)
		seen[d] = name
	}
	for n := range 40 {
		differs("zeros", make([]byte, n))
	}
	data := vectorData(4096, 7)
	differs("data", data)
	for _, n := range []int{8, 16, 512, 2048} { // two blocks change places
		for at := n; at < len(data); at += n {
			swapped := slices.Clone(data)
			copy(swapped, data[at:at+n])
			copy(swapped[at:], data[:n])
			differs("swapped", swapped)
		}
	}
	for at := 1; at < len(data); at += 97 { // what is there moves
		differs("rotated", slices.Concat(data[at:], data[:at]))
	}
}

// Parts may come in any order, from the host and from the device, side by side.
func TestDigestOfParts(t *testing.T) {
	const part = 40_000
	b := newBench(t, room)
	data := random(5*part+3, 3)
	b.write(t, b.DevicePtr, data)
	var d kernels.Digester
	var wg sync.WaitGroup
	for i := range uint64(6) {
		wg.Go(func() {
			at := (5 - i) * part
			if i%2 == 0 {
				if err := d.Add(at, data[at:min(at+part, uint64(len(data)))]); err != nil {
					t.Error(err)
				}
				return
			}
			p := kernels.Part{Ptr: b.Add(at), Offset: at, Bytes: min(part, uint64(len(data))-at)}
			if err := b.DigestPart(context.Background(), b.s, &d, p); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.Equal(t, kernels.DigestOf(data), d.Digest())
}

func TestDigestRefuses(t *testing.T) {
	b := newBench(t, 64)
	b.write(t, b.DevicePtr, make([]byte, 64))
	var d kernels.Digester
	require.ErrorIs(t, d.Add(4, nil), kernels.ErrPart)
	require.ErrorIs(t, b.DigestPart(soon(t), b.s, &d, kernels.Part{Ptr: b.DevicePtr, Offset: 7}), kernels.ErrPart)
	require.ErrorIs(t, second(b.Digest(soon(t), b.s, b.Add(8), 8)), kernels.ErrAlignment)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, b.s.WaitValue32(b.Add(16), 1, cu.WaitEQ))
	err := b.DigestPart(ctx, b.s, &d, kernels.Part{Ptr: b.DevicePtr, Bytes: 8})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, b.KernelDigestPart(ctx, b.s, &d, kernels.Part{Ptr: b.DevicePtr, Bytes: 8}), context.Canceled)
	other := newStream(t, b.ctx)
	require.NoError(t, errors.Join(other.WriteValue32(b.Add(16), 1, cu.WriteDefault), b.s.Synchronize(soon(t))))
	require.Equal(t, kernels.DigestOf(nil), d.Digest(), "what failed changes nothing")
	require.NoError(t, b.Close())
	require.ErrorIs(t, b.KernelDigestPart(soon(t), b.s, &d, kernels.Part{Ptr: b.DevicePtr, Bytes: 8}), cu.ErrClosed)
	for _, k := range []*kernels.Set{b.Set, {}, nil} {
		require.ErrorIs(t, second(k.Digest(soon(t), b.s, b.DevicePtr, 8)), cu.ErrClosed)
	}
	var none *kernels.Digester
	require.ErrorIs(t, none.Add(0, nil), kernels.ErrPart)
	require.Equal(t, kernels.DigestOf(nil), none.Digest())
}

func BenchmarkDigest(b *testing.B) {
	k := newBench(b, size())
	measure(b, k, size(), func() error { return second(k.Digest(context.Background(), k.s, k.DevicePtr, size())) })
}

func BenchmarkDigestOf(b *testing.B) {
	data := vectorData(64<<20, 1)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		kernels.DigestOf(data)
	}
}
