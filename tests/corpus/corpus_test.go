package corpus

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/testenv"
)

var (
	directory = flag.String("corpus", "../../cu/soft/internal/ptx/testdata/corpus", "the directory of the kernels")
	recordTo  = flag.String("record", "", "record what a GPU computes in this directory")
	keepIn    = flag.String("keep", "", "keep all outputs of the corpus in this directory")
)

// variants are the ways that nvcc compiles: optimised, and -O0 -G.
var variants = []string{"opt", "dbg"}

// A kase is one line of cases.txt, compiled one way.
type kase struct {
	file, kernel, variant string
	grid, block           cu.Dim3
	shared                uint32
	bytes                 int
	how                   string // what else it wants
	loose                 bool   // for debugging, a GPU does something else: see cases.txt
}

func (k kase) name() string { return k.file + "/" + k.kernel + "/" + k.variant }

// astray is a case that does on a GPU what its source does not say.
func (k kase) astray() bool { return k.loose && k.variant == "dbg" }

// recordedAs is the case whose recording it is compared with: the optimised one where
// that for debugging is loose.
func (k kase) recordedAs() string {
	if k.loose {
		k.variant = "opt"
	}
	return k.name()
}

// alone is a case that prints or ends its context: it has a process of its own.
func (k kase) alone() bool { return k.how == "alone" }

// cases reads them, each in all variants.
func cases() (list []kase, err error) {
	text, err := os.ReadFile(filepath.Join(*directory, "cases.txt"))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] == "#" {
			continue
		}
		loose := f[len(f)-1] == "loose"
		if loose {
			f = f[:len(f)-1]
		}
		if f = append(f, ""); len(f) < 7 {
			return nil, fmt.Errorf("cases.txt: %q", line)
		}
		shared, err := strconv.ParseUint(f[4], 10, 32)
		size, bad := strconv.Atoi(f[5])
		if err := errors.Join(err, bad); err != nil {
			return nil, err
		}
		for _, v := range variants {
			list = append(list, kase{f[0], f[1], v, dim(f[2]), dim(f[3]), uint32(shared), size, f[6], loose})
		}
	}
	return list, nil
}

// dim reads 4 or 4,4 or 4,4,4.
func dim(s string) (d cu.Dim3) {
	for i, part := range strings.Split(s, ",") {
		n, _ := strconv.ParseUint(part, 10, 32)
		*[]*uint32{&d.X, &d.Y, &d.Z}[i] = uint32(n)
	}
	return d
}

// text reads a variant's PTX.
func (k kase) text() ([]byte, error) { return unzipped(k.file + "." + k.variant + ".ptx.gz") }

// unzipped reads a file of the corpus.
func unzipped(name string) ([]byte, error) {
	file, err := os.Open(filepath.Join(*directory, name))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	r, err := gzip.NewReader(file)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// input is the same for each kernel on each run.
func (k kase) input() []byte {
	b := make([]byte, k.bytes)
	state := uint64(len(k.kernel))
	for _, c := range k.kernel {
		state = state*31 + uint64(c)
	}
	for i := range b {
		state += 0x9e3779b97f4a7c15
		z := (state ^ state>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		b[i] = byte(z >> 56)
	}
	return b
}

// run runs a case in a context of its own, and returns the output.
func (k kase) run(c *cu.Context) ([]byte, error) {
	text, err := k.text()
	if err != nil {
		return nil, err
	}
	m, err := c.LoadModule(text)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	f, err := m.Function(k.kernel)
	if err != nil {
		return nil, err
	}
	in, err := c.Alloc(uint64(k.bytes))
	if err != nil {
		return nil, err
	}
	defer in.Close()
	out, err := c.Alloc(uint64(k.bytes))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	return k.launch(c, f, in, out)
}

// launch runs the kernel once in a stream of its own.
func (k kase) launch(c *cu.Context, f *cu.Function, in, out *cu.Memory) ([]byte, error) {
	s, err := c.NewStream()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	result := make([]byte, k.bytes)
	if err := errors.Join(cu.CopyToDeviceAsync(s, in.Ptr(), k.input()), cu.CopyToDeviceAsync(s, out.Ptr(), result), s.Synchronize(context.Background())); err != nil {
		return nil, err
	}
	cfg := cu.LaunchConfig{Grid: k.grid, Block: k.block, Shared: k.shared, Cooperative: k.how == "cooperative"}
	if err := f.Launch(s, cfg, in, out, uint64(k.bytes)); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := s.Synchronize(ctx); err != nil {
		return nil, err
	}
	return result, errors.Join(cu.CopyToHostAsync(s, result, out.Ptr()), s.Synchronize(ctx))
}

// caseChild runs the case that its argument names, and writes what comes of it behind
// what the kernel has printed.
func caseChild() error {
	cutest.ExpectLeaks() // contexts that are lost
	flag.Parse()
	list, err := cases()
	if err != nil {
		return err
	}
	for _, k := range list {
		if k.name() != flag.Arg(0) {
			continue
		}
		dev := testenv.Got(testenv.Got(cutest.Open()).Device(0))
		got, err := k.run(testenv.Got(dev.PrimaryContext()))
		flushC()
		fmt.Printf("\x00%s\x00%s", got, result(err))
		return nil
	}
	return fmt.Errorf("no case %s", flag.Arg(0))
}

// result is an error's as it is recorded: the driver's, if it has one.
func result(err error) string {
	var e *cu.Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return e.Result.Error()
	}
	return err.Error()
}

// outcome is what a case has come to: its output, and what it printed, and its
// error.
type outcome struct {
	output  []byte
	printed string
	errors  string // that it printed
	result  string
}

// hash is what is recorded of it.
func (o outcome) hash() string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\x00%s\x00%s\x00%s", o.output, o.printed, o.errors, o.result)
	return hex.EncodeToString(h.Sum(nil)[:12])
}

// of runs a case, in a child if it has to.
func (k kase) outcome(t *testing.T) (o outcome) {
	if !k.alone() {
		c := cutest.Context(t, cutest.Device(t))
		var err error
		o.output, err = k.run(c)
		o.result = result(err)
		return o
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := cutest.Child(ctx, "case")
	cmd.Args = append(cmd.Args, "-corpus", *directory, k.name())
	var said, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &complaint
	require.NoError(t, cmd.Run(), "%s", &complaint)
	o.errors = complaint.String()
	parts := strings.Split(said.String(), "\x00")
	require.GreaterOrEqual(t, len(parts), 3)
	o.printed, o.result = parts[0], parts[len(parts)-1]
	o.output = []byte(strings.Join(parts[1:len(parts)-1], "\x00"))
	return o
}

// recorded reads what an H200 made of the cases.
func recorded(t *testing.T) map[string]string {
	text := ok(os.ReadFile(filepath.Join(*directory, "h200.txt")))(t)
	known := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 2 {
			known[f[0]] = f[1]
		}
	}
	return known
}

// takes skips a test whose PTX is of a version that the driver is too old for.
func takes(t *testing.T, version string) {
	m, err := cutest.Context(t, cutest.Device(t)).LoadModule([]byte(".version " + version + "\n.target sm_75\n.address_size 64\n"))
	if errors.Is(err, cu.ErrUnsupportedPTXVersion) {
		t.Skipf("the driver is older than PTX %s", version)
	}
	require.NoError(t, err)
	require.NoError(t, m.Close())
}

// Every kernel of the corpus makes the bytes that it makes on an H200. With
// -record, what it makes is written to that directory instead.
func TestCorpus(t *testing.T) {
	list := ok(cases())(t)
	require.NotEmpty(t, list)
	takes(t, "9.0")
	if *recordTo != "" {
		record(t, *recordTo, list)
		return
	}
	known := recorded(t)
	for _, k := range list {
		t.Run(k.name(), func(t *testing.T) {
			want := known[k.recordedAs()]
			require.NotEmpty(t, want, "not recorded: scripts/corpus.sh, and -record on a GPU")
			o := k.outcome(t)
			keep(t, k, o)
			switch {
			case k.how == "float":
				k.near(t, o)
			case k.astray() && cutest.Kind() == cu.CUDA:
				require.Empty(t, o.result)
			default:
				require.Equal(t, want, o.hash(), "%s\n%s%s", o.result, o.printed, o.errors)
			}
		})
	}
}

// tolerance is how far floats may be apart, in units of the last place.
const tolerance = 4

// near compares floats with those that were recorded, the same in all variants.
func (k kase) near(t *testing.T, o outcome) {
	require.Empty(t, o.result)
	want := ok(unzipped(k.kernel + ".bin.gz"))(t)
	require.Len(t, o.output, len(want))
	for i := 0; i < len(want); i += 4 {
		a, b := ordered(binary.LittleEndian.Uint32(want[i:])), ordered(binary.LittleEndian.Uint32(o.output[i:]))
		require.LessOrEqual(t, max(a, b)-min(a, b), int64(tolerance), "float %d: %x, want %x", i/4, o.output[i:i+4], want[i:i+4])
	}
}

// ordered numbers floats by their size; zeros are one.
func ordered(bits uint32) int64 {
	if bits>>31 != 0 {
		return -int64(bits & 0x7fffffff)
	}
	return int64(bits)
}

// keep writes what a case came to into the directory of -keep, to be compared.
func keep(t *testing.T, k kase, o outcome) {
	if *keepIn == "" {
		return
	}
	name := filepath.Join(*keepIn, strings.ReplaceAll(k.name(), "/", "."))
	require.NoError(t, os.WriteFile(name+".bin", o.output, 0o644))
	if said := o.printed + o.errors + o.result; said != "" {
		require.NoError(t, os.WriteFile(name+".txt", []byte(o.printed+"\x00"+o.errors+"\x00"+o.result), 0o644))
	}
}

func record(t *testing.T, dir string, list []kase) {
	file := ok(os.Create(filepath.Join(dir, "h200.txt")))(t)
	defer file.Close()
	for _, k := range list {
		t.Run(k.name(), func(t *testing.T) {
			o := k.outcome(t)
			keep(t, k, o)
			fmt.Fprintln(file, k.name(), o.hash())
			t.Log(o.result)
		})
	}
}
