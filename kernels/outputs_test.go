package kernels_test

import (
	"crypto/sha256"
	_ "embed"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/pattern"
	"github.com/gpufd/gpufd/kernels"
)

// knownOutputs has a line for each case of TestOutputs: what the kernel left in
// memory, as a hash, on the software driver and on an H200 alike.
//
//go:embed testdata/outputs.txt
var knownOutputs string

var writeOutputs = flag.String("outputs", "", "write the lines that are testdata/outputs.txt to this `file`, and compare nothing")

// The same PTX and inputs give the same bytes on every driver: those known.
func TestOutputs(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	s := newStream(t, ctx)
	var have strings.Builder
	for _, b := range kernels.Builtins() {
		mod := ok(ctx.LoadModule([]byte(b.PTX)))(t)
		for _, k := range b.Kernels {
			f := ok(mod.Function(k.Name))(t)
			for n := range 2 * len(outputSizes) {
				c := newOutputCase(k.Name, n)
				fmt.Fprintf(&have, "%s: %x\n", c, sha256.Sum256(c.run(t, s, f)))
			}
		}
		require.NoError(t, mod.Close())
	}
	if *writeOutputs != "" {
		require.NoError(t, os.WriteFile(*writeOutputs, []byte(have.String()), 0o644))
		return
	}
	known, all := strings.Split(knownOutputs, "\n"), strings.Split(have.String(), "\n")
	require.Len(t, all, len(known), "go test ./kernels -run TestOutputs -outputs testdata/outputs.txt")
	for i := range known {
		if all[i] != known[i] {
			t.Errorf("not as known:\n%s\n%s", all[i], known[i])
		}
	}
}

// How many bytes or numbers a kernel is given, and how many blocks and threads: of
// each a few at which kernels change their ways.
var (
	outputSizes  = []int{0, 1, 3, 15, 16, 17, 31, 1000, 1009, 4096, 4099, 65537, 1<<18 + 5}
	outputShapes = [][2]uint32{{3, 128}, {1, 1}, {2, 1024}, {7, 33}, {1, 256}, {64, 256}, {5, 31}}
)

// An outputCase is one launch.
type outputCase struct {
	kernel      string
	size        int
	shape       [2]uint32
	at          int    // where in its part of the memory each operand begins
	memory      []byte // before
	first       uint64
	salt, scale uint32
}

// newOutputCase is the n-th of a kernel. Everything in it follows from n.
func newOutputCase(kernel string, n int) *outputCase {
	align := map[string]int{"fill_bytes": 1, "vector_add": 4, "saxpy": 4, "checksum": 8}[kernel]
	if align == 0 {
		align = 16
	}
	c := &outputCase{
		kernel: kernel, size: outputSizes[n/2], shape: outputShapes[n%len(outputShapes)], at: align * []int{1, 0, 3, 5}[n%4],
		first: []uint64{0, 1<<32 - 2, 7, math.MaxUint64 - 2}[n%4], salt: uint32(n) * 0x9e3779b9,
		scale: math.Float32bits([]float32{1.1, -3e38, 1e-40, float32(math.Inf(1)), 0.5}[n%5]),
	}
	c.memory = random(3*c.part(), uint64(n))
	switch kernel {
	case "vector_add", "saxpy":
		c.tame()
	case "pattern_check":
		c.spoil(n)
	}
	return c
}

func (c *outputCase) String() string {
	return fmt.Sprintf("%s grid %d block %d size %d at %d", c.kernel, c.shape[0], c.shape[1], c.size, c.at)
}

// part is how much memory an operand has, with some around it that should stay.
func (c *outputCase) part() int { return (4*c.size + 256 + 15) &^ 15 }

// tame brings most numbers close to 1, where sums have to be rounded. The others are
// as they come: not finite, not normal, not a number.
func (c *outputCase) tame() {
	for i := 0; i < len(c.memory); i += 4 {
		if w := binary.LittleEndian.Uint32(c.memory[i:]); w%8 != 0 {
			binary.LittleEndian.PutUint32(c.memory[i:], w&0x807fffff|(120+w>>8%16)<<23)
		}
	}
}

// spoil makes the operand the pattern, with some bits inverted, if any.
func (c *outputCase) spoil(n int) {
	if n%5 == 4 {
		return // all wrong
	}
	data := c.memory[c.at : c.at+c.size]
	pattern.Fill(data, c.first, c.salt)
	for i := range min(n%7, c.size) {
		data[(i+1)*7919%c.size] ^= 1 << i
	}
}

// run returns the memory as the kernel leaves it.
func (c *outputCase) run(t *testing.T, s *cu.Stream, f *cu.Function) []byte {
	t.Helper()
	ctx := s.Context()
	m := ok(ctx.Alloc(uint64(len(c.memory))))(t)
	require.NoError(t, errors.Join(cu.CopyToDeviceAsync(s, m.Ptr(), c.memory), s.Synchronize(t.Context())))
	cfg := cu.LaunchConfig{Grid: cu.Dim3{X: c.shape[0]}, Block: cu.Dim3{X: c.shape[1]}}
	require.NoError(t, f.Launch(s, cfg, c.args(t, m.Ptr())...), c)
	require.NoError(t, s.Synchronize(soon(t)), c)
	after := make([]byte, len(c.memory))
	require.NoError(t, errors.Join(cu.CopyToHostAsync(s, after, m.Ptr()), s.Synchronize(t.Context())))
	require.NoError(t, m.Close())
	return after
}

// args are the kernel's, with its operands in the memory at p.
func (c *outputCase) args(t *testing.T, p cu.DevicePtr) []any {
	a := p.Add(uint64(c.at))
	b := a.Add(uint64(c.part()))
	d, n := b.Add(uint64(c.part())), uint64(c.size)
	switch c.kernel {
	case "pattern_fill":
		return []any{a, n, c.first, c.salt}
	case "pattern_check":
		return []any{a, n, c.first, c.salt, b}
	case "fill_bytes":
		return []any{a, n, uint8(c.salt)}
	case "copy_bytes":
		return []any{b, a, n}
	case "checksum":
		return []any{a, n, b}
	case "digest":
		return []any{a, n, c.first, b}
	case "vector_add":
		return []any{a, b, d, n}
	case "saxpy":
		return []any{math.Float32frombits(c.scale), a, b, n}
	}
	require.Fail(t, "there are no outputs of "+c.kernel)
	return nil
}
