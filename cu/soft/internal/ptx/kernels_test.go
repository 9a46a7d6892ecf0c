package ptx

import (
	"context"
	"encoding/binary"
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

func mix(x uint64) uint64 {
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb
	return x ^ (x >> 31)
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
