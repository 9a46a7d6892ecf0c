package ptx

import (
	"context"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// A host is memory that a test's kernel sees at one address.
type host struct {
	at     uint64
	memory []byte
}

func (h host) Piece(address uint64, _ bool) ([]byte, uint64) {
	if address < h.at || address >= h.at+uint64(len(h.memory)) {
		return nil, 0
	}
	return h.memory, h.at
}

const base = 0x7f0000000000

// params lays out a kernel's parameters, each aligned to its size.
func params(values ...any) []byte {
	var b []byte
	for _, v := range values {
		for len(b)%binary.Size(v) != 0 {
			b = append(b, 0)
		}
		b, _ = binary.Append(b, binary.LittleEndian, v)
	}
	return b
}

func kernelText(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../../../kernels", name+".ptx"))
	require.NoError(t, err)
	return string(text)
}

func parsed(t testing.TB, text string) *Module {
	t.Helper()
	m, err := Parse(text)
	require.NoError(t, err)
	return m
}

func launch(t testing.TB, m *Module, kernel string, memory []byte, blocks, threads uint32, p []byte) {
	t.Helper()
	err := m.Run(context.Background(), kernel, Launch{Grid: [3]uint32{blocks, 1, 1}, Block: [3]uint32{threads, 1, 1}, Params: p, Memory: host{base, memory}})
	require.NoError(t, err)
}

func TestVectorAdd(t *testing.T) {
	const n = 1000
	m := parsed(t, kernelText(t, "vector"))
	memory := make([]byte, 3*4*n)
	for i := range n {
		binary.LittleEndian.PutUint32(memory[4*i:], math.Float32bits(float32(i)*1.1))
		binary.LittleEndian.PutUint32(memory[4*(n+i):], math.Float32bits(float32(i)/3))
	}
	launch(t, m, "vector_add", memory, 3, 64, params(uint64(base), uint64(base+4*n), uint64(base+8*n), uint64(n)))
	for i := range n {
		want := float32(float32(i)*1.1) + float32(i)/3 // converted, or arm64 fuses
		require.Equal(t, want, math.Float32frombits(binary.LittleEndian.Uint32(memory[4*(2*n+i):])), i)
	}
}

func TestPattern(t *testing.T) {
	m := parsed(t, kernelText(t, "pattern"))
	const bytes = 100003
	memory := make([]byte, bytes+5+16)
	launch(t, m, "pattern_fill", memory, 4, 128, params(uint64(base), uint64(bytes), uint64(7), uint32(0xabc)))
	for i := range bytes {
		w := (uint32(i/4+7)*2 + 1337) ^ 0xDEADBEEF ^ 0xabc
		require.Equal(t, byte(w>>(8*(i%4))), memory[i], i)
	}
	require.Equal(t, make([]byte, 21), memory[bytes:])

	result := memory[bytes+5:]
	check := func() (uint64, uint64) {
		binary.LittleEndian.PutUint64(result, 0)
		binary.LittleEndian.PutUint64(result[8:], math.MaxUint64)
		launch(t, m, "pattern_check", memory, 4, 128, params(uint64(base), uint64(bytes), uint64(7), uint32(0xabc), uint64(base+bytes+5)))
		return binary.LittleEndian.Uint64(result), binary.LittleEndian.Uint64(result[8:])
	}
	wrong, index := check()
	require.Zero(t, wrong)
	require.Equal(t, uint64(math.MaxUint64), index)
	memory[4*5000+2] ^= 4
	memory[bytes-1] ^= 1
	wrong, index = check()
	require.EqualValues(t, 2, wrong)
	require.EqualValues(t, 5007, index)
}

func mix(x uint64) uint64 {
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb
	return x ^ (x >> 31)
}

func TestChecksum(t *testing.T) {
	for _, text := range []string{kernelText(t, "memory"), debugText(t)} {
		m := parsed(t, text)
		memory := make([]byte, 1003+5+16)
		for i := range 1003 {
			memory[i] = byte(i * i)
		}
		launch(t, m, "checksum", memory, 3, 96, params(uint64(base), uint64(1003), uint64(base+1008)))
		want, padded := uint64(0), append(append([]byte{}, memory[:1003]...), 0, 0, 0, 0, 0)
		for w := range uint64(1008 / 8) {
			want += mix(binary.LittleEndian.Uint64(padded[8*w:]) ^ mix(w+1))
		}
		require.Equal(t, want, binary.LittleEndian.Uint64(memory[1008:]))
	}
}

func debugText(t testing.TB) string {
	text, err := os.ReadFile("testdata/memory-g.ptx")
	require.NoError(t, err)
	return string(text)
}

// BenchmarkChecksum is the interpreter's speed on all cores: see -cpu.
func BenchmarkChecksum(b *testing.B) {
	const instructions = 3412048 // of one launch
	b.SetBytes(1 << 20)
	m := parsed(b, kernelText(b, "memory"))
	memory := make([]byte, 1<<20+16)
	for b.Loop() {
		launch(b, m, "checksum", memory, 16, 256, params(uint64(base), uint64(1<<20), uint64(base+1<<20)))
	}
	b.ReportMetric(instructions*float64(b.N)/b.Elapsed().Seconds()/1e6, "Minst/s")
}

// A signal is memory that says when it is first read.
type signal struct {
	host
	once sync.Once
	seen chan struct{}
}

func (s *signal) Piece(address uint64, write bool) ([]byte, uint64) {
	s.once.Do(func() { close(s.seen) })
	return s.host.Piece(address, write)
}
