package ptx

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math"
	"math/bits"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
)

var (
	recordTo = flag.String("record", "", "record what a GPU makes of the forms in this folder")
	dumpForm = flag.String("form", "", "the form to dump, as newHashForm reads it")
	dumpTo   = flag.String("dump", "", "dump all operands and results of the form into this file")
)

// TestRecord records what a GPU makes of the forms: hashes.txt goes to testdata/h200-hashes.txt; report.txt
// has the operands for which the software driver disagrees.
func TestRecord(t *testing.T) {
	folder := *recordTo
	if folder == "" {
		t.Skip("-record names no folder")
	}
	g := newGPU(t)
	var hashes, report strings.Builder
	forms, began := hashForms(), time.Now()
	const batch, enough = 24, 70 * time.Second
	for len(forms) > 0 && time.Since(began) < enough {
		some := forms[:min(batch, len(forms))]
		forms = forms[len(some):]
		mod, err := g.load(some)
		for n, f := range some {
			if err == nil {
				g.record(t, f, mod, n, &hashes, &report)
				continue
			}
			alone, err := g.load([]hashForm{f})
			if err != nil {
				noteRefused(f, err, &hashes, &report)
				continue
			}
			g.record(t, f, alone, 0, &hashes, &report)
			require.NoError(t, alone.Close())
		}
		if err == nil {
			require.NoError(t, mod.Close())
		}
		require.NoError(t, os.WriteFile(filepath.Join(folder, "hashes.txt"), []byte(hashes.String()), 0o644))
		require.NoError(t, os.WriteFile(filepath.Join(folder, "report.txt"), []byte(report.String()), 0o644))
	}
	require.Empty(t, forms, "too slow")
}

// TestDump writes the operands and results of a form, those of a GPU with GPUFD_DRIVER=cuda. A path that is not
// absolute begins in this folder. A line is one case, in hexadecimal: 64 bits of each operand, of
// which the instruction reads as many as its type has, and the result.
func TestDump(t *testing.T) {
	path := *dumpTo
	if path == "" {
		t.Skip("-dump names no file")
	}
	f := newHashForm(*dumpForm)
	var results []byte
	if os.Getenv("GPUFD_DRIVER") == "cuda" {
		g := newGPU(t)
		mod, err := g.load([]hashForm{f})
		require.NoError(t, err)
		results = g.run(t, f, mod, 0)
		require.NoError(t, mod.Close())
	} else {
		results = f.soft(t, parsed(t, hashModule([]hashForm{f})), 0)
	}
	var out strings.Builder
	input := f.input()
	for n := range hashCases {
		for k := range len(f.types) - 1 {
			fmt.Fprintf(&out, "%x ", binary.LittleEndian.Uint64(input[8*(hashWords*n+k):]))
		}
		fmt.Fprintf(&out, "%x\n", binary.LittleEndian.Uint64(results[8*n:]))
	}
	require.NoError(t, os.WriteFile(path, []byte(out.String()), 0o644))
}

// A gpu is a driver's device with memory for operands and results.
type gpu struct {
	ctx     *cu.Context
	in, out *cu.Memory
}

func newGPU(t *testing.T) gpu {
	drv, err := cu.Open()
	require.NoError(t, err)
	dev, err := drv.Device(0)
	require.NoError(t, err)
	ctx, err := dev.PrimaryContext()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ctx.Close()) })
	in, err := ctx.Alloc(8 * hashWords * hashCases)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, in.Close()) })
	out, err := ctx.Alloc(8 * hashCases)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, out.Close()) })
	return gpu{ctx, in, out}
}

func hashModule(forms []hashForm) string {
	text := hashHeader
	for n, f := range forms {
		text += f.kernel(n)
	}
	return text
}

func (g gpu) load(forms []hashForm) (*cu.Module, error) {
	return g.ctx.LoadModule([]byte(hashModule(forms)))
}

// run runs the n-th kernel of a module on the GPU.
func (g gpu) run(t *testing.T, f hashForm, mod *cu.Module, n int) []byte {
	fn, err := mod.Function(fmt.Sprintf("k%d", n))
	require.NoError(t, err)
	results := make([]byte, 8*hashCases)
	require.NoError(t, cu.CopyToDevice(g.ctx, g.in.Ptr(), f.input()))
	require.NoError(t, cu.CopyToDevice(g.ctx, g.out.Ptr(), results))
	require.NoError(t, fn.Launch(fn.Context().NullStream(), cu.LaunchConfig{Grid: cu.Dim3{X: hashCases / 256}, Block: cu.Dim3{X: 256}}, g.in.Ptr(), g.out.Ptr()))
	require.NoError(t, cu.CopyToHost(g.ctx, results, g.out.Ptr()))
	return results
}

// noteRefused notes a form that the GPU does not take.
func noteRefused(f hashForm, err error, hashes, report *strings.Builder) {
	fmt.Fprintf(hashes, "%s: refused\n", f.name)
	why := strings.Join(strings.Fields(err.Error()), " ")
	_, soft := Parse(hashHeader + f.kernel(0))
	if soft == nil {
		fmt.Fprintf(report, "ONLY SOFT %s: %.300s\n", f.name, why)
	}
}

// record notes what the GPU makes of a form, and where the software driver
// disagrees.
func (g gpu) record(t *testing.T, f hashForm, mod *cu.Module, n int, hashes, report *strings.Builder) {
	results := g.run(t, f, mod, n)
	if f.approx {
		fmt.Fprintf(hashes, "%s:%s\n", f.name, sample(results))
	} else {
		fmt.Fprintf(hashes, "%s: %s\n", f.name, hashOf(results))
	}
	m, err := Parse(hashHeader + f.kernel(0))
	if err != nil {
		fmt.Fprintf(report, "ONLY GPU %s: %v\n", f.name, err)
		compared(f, results, make([]byte, len(results)), 40, report)
		return
	}
	compared(f, results, f.soft(t, m, 0), 120, report)
}

// approxCases is how many results of approximate forms are kept.
const approxCases = 64

func sample(results []byte) string {
	var s strings.Builder
	for n := range approxCases {
		fmt.Fprintf(&s, " %x", binary.LittleEndian.Uint64(results[8*n:]))
	}
	return s.String()
}

// compared lists where results differ, and how far apart approximate ones are.
func compared(f hashForm, gpu, soft []byte, limit int, report *strings.Builder) {
	input, differ, worst := f.input(), 0, map[uint64]int{}
	var absolute, near float64
	var list strings.Builder
	for n := range hashCases {
		a, b := binary.LittleEndian.Uint64(gpu[8*n:]), binary.LittleEndian.Uint64(soft[8*n:])
		if a == b {
			continue
		}
		far := uint64(0)
		if f.approx {
			far = ulps(f.types[0], a, b)
			worst[1<<bits.Len64(far)-1]++ // by powers of two
			if x := math.Abs(float64(f32(binary.LittleEndian.Uint64(input[8*hashWords*n:])))); f.types[0] == "f32" && x < 314 {
				absolute = max(absolute, math.Abs(float64(f32(a))-float64(f32(b))))
				if x < 6.2831853 {
					near = max(near, math.Abs(float64(f32(a))-float64(f32(b))))
				}
			}
			if far < 8 {
				continue
			}
		}
		if differ++; differ > limit {
			continue
		}
		list.WriteString("  ")
		for k := range len(f.types) - 1 {
			fmt.Fprintf(&list, "%x ", binary.LittleEndian.Uint64(input[8*(hashWords*n+k):]))
		}
		fmt.Fprintf(&list, "gpu %x soft %x\n", a, b)
	}
	if f.approx {
		fmt.Fprintf(report, "APPROX %s: up to so many ulps apart: %v; by up to %g, within 2π %g\n", f.name, worst, absolute, near)
	}
	if differ > 0 {
		fmt.Fprintf(report, "DIFFER %s: %d\n%s", f.name, differ, list.String())
	}
}
