package compute

import (
	"encoding/binary"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/pattern"
	"github.com/gpufd/gpufd/kernels"
)

// launch starts the program, on the driver that tests run on.
func launch(t *testing.T, env []string, args ...string) *programs.Process {
	t.Helper()
	env = append(programs.OwnDevices(t), env...)
	return programs.Start(t, "launch", programs.ProgramPath(t, "launch"), env, args...)
}

// file writes content to a new file and returns its name.
func file(t *testing.T, content []byte) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(name, content, 0o600))
	return name
}

func contents(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	return b
}

// floats are numbers as they lie in memory.
func floats(n int, at func(i int) float32) (b []byte) {
	for i := range n {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(at(i)))
	}
	return b
}

func words(w ...uint64) (b []byte) {
	for _, v := range w {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

// probes are kernels of all kinds but the useful.
const probes = `.version 7.4
.target sm_75
.address_size 64
.extern .shared .align 4 .b8 room[];
// .entry nowhere
.visible .entry count(.param .u64 out) { // how many threads there are
	.reg .b64 %rd<2>; .reg .b32 %r<2>;
	ld.param.u64 %rd0, [out];
	cvta.to.global.u64 %rd1, %rd0;
	atom.global.add.u32 %r0, [%rd1], 1;
	ret;
}
.visible .entry through(.param .u64 out, .param .u32 offset, .param .u32 value) { // shared memory
	.reg .b64 %rd<2>; .reg .b32 %r<5>;
	ld.param.u64 %rd0, [out];
	ld.param.u32 %r0, [offset];
	ld.param.u32 %r1, [value];
	mov.u32 %r2, room;
	add.u32 %r3, %r2, %r0;
	st.shared.u32 [%r3], %r1;
	ld.shared.u32 %r4, [%r3];
	cvta.to.global.u64 %rd1, %rd0;
	st.global.u32 [%rd1], %r4;
	ret;
}
.visible .entry spin(.param .u64 p) {
	.reg .b64 %rd<2>; .reg .b32 %r<2>; .reg .pred %p<2>;
	ld.param.u64 %rd1, [p];
again:
	ld.volatile.global.u32 %r1, [%rd1];
	setp.eq.u32 %p1, %r1, 0;
	@%p1 bra again;
	ret;
}
.visible .entry leave(.param .u64 p) { ret; }
.visible .entry die(.param .u64 p) { trap; }
.visible .entry nothing() { ret; }
`

// Every kernel that comes with the module, and what it leaves in memory.
func TestLaunchBuiltins(t *testing.T) {
	programs.Parallel(t)
	const n = 1003
	a, b := floats(n, func(i int) float32 { return float32(i) }), floats(n, func(i int) float32 { return 0.5 })
	data := make([]byte, 4*n+3)
	pattern.Fill(data, 7, 42)
	broken := append([]byte(nil), data...)
	broken[41], broken[4*n+1] = ^broken[41], ^broken[4*n+1]
	inA, inB, inData, inBroken := file(t, a), file(t, b), file(t, data), file(t, broken)
	for name, c := range map[string]struct {
		args []string // OUT is where the output goes
		want []byte
	}{
		"pattern_fill":  {args("zero:4015:OUT", "u64:4015", "u64:7", "u32:42"), data},
		"pattern_check": {args("in:"+inBroken, "u64:0xfaf", "u64:7", "u32:42", "inout:"+file(t, words(0, math.MaxUint64))+":OUT"), words(2, 7+10)},
		"fill_bytes":    {args("zero:3KiB:OUT", "u64:3071", "u8:0xa5"), append([]byte(strings.Repeat("\xa5", 3071)), 0)},
		"copy_bytes":    {args("zero:4015:OUT", "in:"+inData, "u64:4015"), data},
		"checksum":      {args("in:"+inData, "u64:4015", "zero:8:OUT"), words(kernels.Checksum(data))},
		"digest":        {args("in:"+inData, "u64:4015", "u64:0", "zero:16:OUT"), digestSums(data)},
		"vector_add":    {args("in:"+inA, "in:"+inB, "zero:4012:OUT", "u64:1003"), floats(n, func(i int) float32 { return float32(i) + 0.5 })},
		"saxpy":         {args("f32:-2.5", "in:"+inA, "inout:"+inB+":OUT", "u64:1003"), floats(n, func(i int) float32 { return -2.5*float32(i) + 0.5 })},
	} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			a := args("-builtin", moduleOf(t, name), "-kernel", name, "-grid", "3", "-block", "128")
			for _, arg := range c.args {
				a = append(a, strings.ReplaceAll(arg, "OUT", out))
			}
			p := launch(t, nil, a...)
			p.Succeeds()
			require.Equal(t, c.want, contents(t, out))
			require.Len(t, programs.Find(p, "Kernel "+name+" took "), 1, p.Dump())
		})
	}
	require.Equal(t, a, contents(t, inA), "an input was changed")
	require.Equal(t, b, contents(t, inB), "an input was changed")
}

// digestSums are the sums of a digest, as package kernels documents them.
func digestSums(b []byte) []byte {
	var sumA, sumB uint64
	for i := uint64(0); i*8 < uint64(len(b)); i++ {
		var w [8]byte
		copy(w[:], b[i*8:])
		key := (i + 1) * 0x9e3779b97f4a7c15
		x := binary.LittleEndian.Uint64(w[:]) ^ key
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		x ^= x >> 31
		sumA, sumB = sumA+x, sumB+x*(key|1)
	}
	return words(sumA, sumB)
}

// moduleOf is the builtin module that a kernel is in. It fails for one that
// TestLaunchBuiltins forgot, too.
func moduleOf(t *testing.T, kernel string) (module string) {
	all := 0
	for _, b := range kernels.Builtins() {
		all += len(b.Kernels)
		for _, k := range b.Kernels {
			if k.Name == kernel {
				module = b.Name
			}
		}
	}
	require.NotEmpty(t, module)
	require.Equal(t, 8, all, "there is a kernel that no case is for")
	return module
}

// A kernel of a file, by both ways to load it; all dimensions; shared memory
// beyond 48 KiB; many launches.
func TestLaunchFiles(t *testing.T) {
	programs.Parallel(t)
	ptx := file(t, []byte(probes))
	for _, flag := range []string{"-ptx", "-module"} {
		t.Run(flag, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			launch(t, nil, flag, ptx, "-kernel", "count", "-grid", "2,3,4", "-block", "5,1,2", "-repeat", "3", "zero:8:"+out).Succeeds()
			require.Equal(t, words(3*240), contents(t, out))
			launch(t, nil, flag, ptx, "-kernel", "through", "-shared", "64KiB", "zero:4B:"+out, "u32:65532", "i32:-2").Succeeds()
			require.Equal(t, []byte{0xfe, 0xff, 0xff, 0xff}, contents(t, out), "it replaces what was there")
			launch(t, nil, flag, ptx, "-kernel", "nothing", "-grid", "2").Succeeds()
		})
	}
}

// Buffers are read and written in pieces, onto the file that was read, too.
func TestLaunchStreamsFiles(t *testing.T) {
	programs.Parallel(t)
	content := make([]byte, pattern.Piece+4099)
	pattern.Fill(content, 1, 2)
	name := file(t, content)
	launch(t, nil, "-ptx", file(t, []byte(probes)), "-kernel", "leave", "inout:"+name+":"+name).Succeeds()
	require.Zero(t, pattern.Check(contents(t, name), 1, 2))
	require.Len(t, contents(t, name), len(content))
	launch(t, nil, "-builtin", "memory", "-kernel", "fill_bytes", "zero:1:/dev/null", "u64:1", "u8:1").Succeeds()
}

func TestLaunchJSON(t *testing.T) {
	programs.Parallel(t)
	out := filepath.Join(t.TempDir(), "out")
	p := launch(t, nil, "-json", "-builtin", "memory", "-kernel", "fill_bytes", "-grid", "2", "-block", "3,2", "-repeat", "20", "-bytes", "8KiB",
		"zero:8KiB:"+out, "u64:8192", "u8:1")
	p.Succeeds()
	last, _ := p.Result()
	require.Equal(t, true, last["ok"])
	require.Equal(t, "fill_bytes", last["kernel"])
	require.EqualValues(t, 20, last["launches"])
	require.Greater(t, last["us"], 0.0)
	require.InDelta(t, 8192/last["us"].(float64)*1e6, last["bytes_per_second"], 1)
	require.Equal(t, []any{3.0, 2.0, 1.0}, programs.Event(t, p, "launching")["block"])
	require.EqualValues(t, 8192, programs.Event(t, p, "wrote")["bytes"])
	require.Equal(t, out, programs.Event(t, p, "wrote")["file"])
	took := last["steps_us"].(map[string]any)
	for _, step := range []string{"driver", "context", "load", "buffers", "launch", "write"} {
		require.Greater(t, took[step], 0.0, step)
	}
	require.LessOrEqual(t, 20*last["us"].(float64), took["launch"], "the time is that of one launch")

	p = launch(t, nil, "-json", "-builtin", "memory", "-kernel", "fill_bytes", "u8:1")
	line := p.Fails(1)
	last, _ = p.Result()
	require.EqualValues(t, 1, last["exit"])
	require.Contains(t, line, last["error"])
}

// TestLaunchList: the parameters of a kernel are listed, or that the driver does not know them.
func TestLaunchList(t *testing.T) {
	programs.Parallel(t)
	p := launch(t, nil, "-builtin", "vector", "-list")
	p.Succeeds()
	require.Regexp(t, `^saxpy: takes 4 arguments \(f32 a, ptr x, ptr y, u64 n\); \d+ registers, 0 bytes of shared memory, 0 of local; at most 1024 threads in a block$`,
		programs.Find(p, "saxpy: ")[0])
	require.Len(t, programs.Find(p, "vector_add: takes 4 arguments"), 1)
	require.Len(t, programs.Find(p, "  y = a x + y, of n float32, rounded once"), 1)
	for _, other := range []string{"Driver: ", "Using CUDA device", "Loaded", "durations", "Cleanup"} {
		require.Empty(t, programs.Find(p, other), "the list, and nothing else")
	}

	ptx := file(t, []byte(probes))
	p = launch(t, nil, "-json", "-ptx", ptx, "-list")
	p.Succeeds()
	_, all := p.Result()
	var names []any
	for _, e := range all {
		if e["event"] != "kernel" {
			continue
		}
		names = append(names, e["kernel"])
		require.Greater(t, e["registers"], 0.0)
		if e["kernel"] == "through" && knowsParameters(t) {
			require.Equal(t, []any{map[string]any{"type": "u64", "size": 8.0}, map[string]any{"type": "u32", "size": 4.0}, map[string]any{"type": "u32", "size": 4.0}}, e["params"])
		}
	}
	require.Equal(t, []any{"count", "die", "leave", "nothing", "spin", "through"}, names)

	p = launch(t, nil, "-module", ptx, "-kernel", "nothing", "-list")
	p.Succeeds()
	require.Len(t, programs.Find(p, "nothing: takes "), 1)
	require.Empty(t, programs.Find(p, "count: "))

	old := args("GPUFD_DRIVER=soft", "GPUFD_SOFT_VERSION=11040")
	for _, flag := range []string{"-ptx", "-module"} {
		p = launch(t, old, flag, ptx, "-list")
		p.Succeeds()
		require.Len(t, programs.Find(p, "through: takes arguments that this driver does not know (CUDA 12.4 does); "), 1, p.Dump())
		require.Empty(t, programs.Find(p, "nowhere"))
	}
	p = launch(t, old, "-builtin", "memory", "-list")
	p.Succeeds()
	require.Len(t, programs.Find(p, "checksum: takes 3 arguments (ptr src, u64 bytes, ptr sum); "), 1)
	launch(t, old, "-ptx", ptx, "-kernel", "nope").Fails(1, "has no kernel nope; it has count, die, leave, nothing, spin and through")
	launch(t, old, "-builtin", "vector", "-kernel", "saxpy", "f32:1").Fails(1, "takes 4 arguments")
}

// TestLaunchListsAll: without a module, all kernels that come with the program are
// listed, or the one that is asked for.
func TestLaunchListsAll(t *testing.T) {
	programs.Parallel(t)
	p := launch(t, nil, "-list")
	p.Succeeds()
	for _, b := range kernels.Builtins() {
		require.Len(t, programs.Find(p, "--builtin "+b.Name+":"), 1, p.Dump())
		for _, k := range b.Kernels {
			require.Len(t, programs.Find(p, k.Name+": takes "), 1, p.Dump())
		}
	}
	p = launch(t, nil, "-list", "-kernel", "saxpy")
	p.Succeeds()
	require.Len(t, programs.Find(p, "saxpy: takes 4 arguments (f32 a, "), 1, p.Dump())
	require.Empty(t, programs.Find(p, "vector_add"))
	require.Empty(t, programs.Find(p, "--builtin pattern:"))
}

// TestLaunchMissingModule: a file that is not there is found missing before a driver is
// opened, which takes a third of a second on a GPU.
func TestLaunchMissingModule(t *testing.T) {
	programs.Parallel(t)
	cutest.ProvenOnSoft(t)
	none := filepath.Join(t.TempDir(), "none")
	for _, flag := range []string{"-ptx", "-module"} {
		p := launch(t, nil, flag, none, "-kernel", "k")
		p.Fails(1, "-"+flag+" "+none+": ", "no such file")
		require.Empty(t, p.Out.All())
	}
}

// TestLaunchErrorComesFirst: what went wrong is said before anything is tidied up.
func TestLaunchErrorComesFirst(t *testing.T) {
	programs.Parallel(t)
	cutest.ProvenOnSoft(t)
	var both programs.Transcript
	cmd := exec.Command(programs.ProgramPath(t, "launch"), "-builtin", "vector", "-kernel", "nope")
	cmd.Env = append(programs.ProgramEnv(), "GPUFD_DRIVER=soft")
	cmd.Stdout, cmd.Stderr = &both, &both
	require.Error(t, cmd.Run())
	said := both.All()
	require.Regexp(t, `^launch: --builtin vector has no kernel nope`, said[len(said)-3], both.String())
	require.Regexp(t, `^  durations: driver \d\S*s, `, said[len(said)-2])
	require.Equal(t, "Cleanup complete", said[len(said)-1])
}

// TestLaunchNumbers: sizes as people write them, and floats of all kinds and by their
// bits, arrive as they should.
func TestLaunchNumbers(t *testing.T) {
	programs.Parallel(t)
	x, out := file(t, floats(1, func(int) float32 { return 3 })), filepath.Join(t.TempDir(), "out")
	launch(t, nil, "-builtin", "vector", "-kernel", "saxpy", "-grid", "0x10", "-block", "0x20", "-shared", "0", "-bytes", "1M",
		"f32:bits:0x40000000", "in:"+x, "zero:4:"+out, "u64:1").Succeeds()
	require.Equal(t, floats(1, func(int) float32 { return 6 }), contents(t, out))
	launch(t, nil, "-builtin", "memory", "-kernel", "fill_bytes", "-grid", "1K", "zero:1K:"+out, "u64:0x400", "u8:1").Succeeds()
	require.Len(t, contents(t, out), 1024)
	if knowsParameters(t) {
		ptx := file(t, []byte(store16))
		for arg, want := range map[string][]byte{"f16:-2": {0x00, 0xc0}, "bf16:-2": {0x00, 0xc0}, "f16:0.5": {0x00, 0x38}, "bf16:0.5": {0x00, 0x3f}} {
			launch(t, nil, "-ptx", ptx, "-kernel", "store", "zero:2:"+out, arg).Succeeds()
			require.Equal(t, want, contents(t, out), arg)
		}
	}
}

// store16 stores an argument of 16 bits.
const store16 = `.version 7.4
.target sm_75
.address_size 64
.visible .entry store(.param .u64 out, .param .u16 value) {
	.reg .b64 %rd<2>; .reg .b16 %rs<2>;
	ld.param.u64 %rd0, [out];
	ld.param.u16 %rs0, [value];
	cvta.to.global.u64 %rd1, %rd0;
	st.global.u16 [%rd1], %rs0;
	ret;
}
`

// knowsParameters reports whether the driver tells what a kernel takes.
func knowsParameters(t *testing.T) bool {
	return cutest.Device(t).Driver().Caller().Library().Has("cuFuncGetParamInfo")
}

// TestLaunchWrong: a wrong command line is one line of error, before anything runs.
func TestLaunchWrong(t *testing.T) {
	programs.Parallel(t)
	ptx, dir := file(t, []byte(probes)), t.TempDir()
	full, empty, out := file(t, words(1)), file(t, nil), filepath.Join(dir, "out")
	pipe := filepath.Join(dir, "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	vast := file(t, nil)
	require.NoError(t, os.Truncate(vast, 2<<30)) // of holes
	saxpy := func(a ...string) []string {
		return append(args("-builtin", "vector", "-kernel", "saxpy"), a...)
	}
	probe := func(kernel string, a ...string) []string {
		return append(args("-ptx", ptx, "-kernel", kernel), a...)
	}
	total, err := cutest.Device(t).TotalMemory()
	require.NoError(t, err)
	fits := args("f32:1", "zero:4", "zero:4:"+out, "u64:1")
	ofTheDriver := args("too few", "wrong size", "missing kernel", "too many threads", "-shared too large", "buffer too large", "wrong PTX", "no PTX")
	for _, c := range []programs.WrongCase{
		{Name: "no module", Args: args("-kernel", "k"), Code: 2, Words: args("one of --ptx, --module and --builtin: none was given; launch --list shows what comes with this program")},
		{Name: "no kernel", Args: args("-ptx", ptx), Code: 2, Words: args("-kernel", "-list")},
		{Name: "unknown builtin", Args: args("-builtin", "saxpy", "-list"), Code: 1, Words: args(`no module "saxpy"`, "pattern, memory, digest or vector")},
		{Name: "missing in all", Args: args("-list", "-kernel", "axpy"), Code: 1, Words: args("no kernel axpy comes with this program", "saxpy")},
		{Name: "-repeat 0", Args: saxpy("-repeat", "0"), Code: 2, Words: args("-repeat 0", "1 or more")},
		{Name: "arguments of -list", Args: args("-ptx", ptx, "-list", "u8:1"), Code: 2, Words: args(`"u8:1"`, "-list")},
		{Name: "argument", Args: saxpy("f32:1", "u9:1"), Code: 2, Words: args(`argument 2, "u9:1"`, "want u8: to u64:")},
		{Name: "flag behind", Args: saxpy("f32:1", "-json"), Code: 2, Words: args("-json: put flags before")},
		{Name: "flag behind, and no module", Args: args("f32:1", "-json"), Code: 2, Words: args("-json: put flags before")},

		{Name: "too few", Args: saxpy("f32:1", "zero:4", "zero:4"), Code: 1, Words: args("kernel saxpy takes 4 arguments (f32 a, ptr x, ptr y, u64 n) and was given 3")},
		{Name: "wrong size", Args: saxpy("u8:1", "zero:4", "zero:4", "u64:1"), Code: 1, Words: args(`argument 1, "u8:1", has 1 byte where kernel saxpy takes 4`)},
		{Name: "buffer for a count", Args: saxpy("f32:1", "zero:4", "zero:4", "zero:4:"+out), Code: 1, Words: args(`argument 4, "zero:4:` + out + `", is no u64: kernel saxpy takes 4 arguments (f32 a, ptr x,`)},
		{Name: "integer for a float", Args: saxpy("u32:1", "zero:4", "zero:4:"+out, "u64:1"), Code: 1, Words: args(`argument 1, "u32:1", is no f32: `, "if 1 are the bits of one, give f32:bits:1")},
		{Name: "float for an integer", Args: saxpy("f32:1", "zero:4", "zero:4:"+out, "f64:1"), Code: 1, Words: args(`argument 4, "f64:1", is no u64: `)},
		{Name: "missing kernel", Args: append(args("-builtin", "vector", "-kernel", "axpy"), fits...), Code: 1, Words: args("-builtin vector has no kernel axpy; it has saxpy and vector_add")},
		{Name: "missing in a file", Args: probe("nowhere"), Code: 1, Words: args("has no kernel nowhere; it has count, die, leave, nothing, spin and through")},
		{Name: "-grid too large", Args: append(saxpy("-grid", "1,65536"), fits...), Code: 1, Words: args("-grid 1,65536", "at most 65535 in Y", "device 0: ")},
		{Name: "too many threads", Args: append(saxpy("-block", "64,17"), fits...), Code: 1, Words: args("-block 64,17", "1088 threads", "at most 1024")},
		{Name: "-shared too large", Args: append(saxpy("-shared", "1MiB"), fits...), Code: 1, Words: args("-shared 1MiB", "at most")},
		{Name: "buffer too large", Args: saxpy("f32:1", "zero:1024TiB", "zero:4:"+out, "u64:1"), Code: 1, Words: args("argument 2", "1024 TiB", "larger than device 0: ")},
		{Name: "buffers too large", Args: saxpy("f32:1", "zero:4", "zero:"+programs.Decimal(total)+":"+out, "u64:1"), Code: 1, Words: args("argument 3", "larger than device 0: ")},

		{Name: "no such input", Args: probe("leave", "in:"+dir+"/none"), Code: 1, Words: args("argument 1", dir+"/none", "no such file")},
		{Name: "input is a directory", Args: probe("leave", "in:"+dir), Code: 1, Words: args(dir + " is not a regular file")},
		{Name: "input is a pipe", Args: probe("leave", "in:"+pipe), Code: 1, Words: args(pipe + " is not a regular file")},
		{Name: "input is empty", Args: probe("leave", "in:"+empty), Code: 1, Words: args(empty + " is empty")},
		{Name: "no such directory", Args: probe("leave", "zero:1:"+dir+"/none/out"), Code: 1, Words: args("argument 1", dir+"/none", "no such file")},
		{Name: "output is a directory", Args: probe("leave", "zero:1:"+dir), Code: 1, Words: args(dir + " is not a regular file")},
		{Name: "output is a pipe", Args: probe("leave", "inout:"+full+":"+pipe), Code: 1, Words: args(pipe + " is not a regular file")},
		{Name: "one output twice", Args: probe("leave", "zero:1:"+out, "zero:2:"+out), Code: 2, Words: args("argument 2", "written to "+out)},
		{Name: "no such PTX", Args: args("-ptx", dir+"/none", "-list"), Code: 1, Words: args("-ptx "+dir+"/none", "no such file")},
		{Name: "PTX is a pipe", Args: args("-ptx", pipe, "-list"), Code: 1, Words: args("-ptx "+pipe, "is not a regular file")},
		{Name: "PTX without end", Args: args("-ptx", "/dev/zero", "-list"), Code: 1, Words: args("/dev/zero is not a regular file")},
		{Name: "PTX too large", Args: args("-ptx", vast, "-list"), Code: 1, Words: args("has 2 GiB, which is too large for a module")},
		{Name: "module is a pipe", Args: args("-module", pipe, "-list"), Code: 1, Words: args("-module "+pipe, "is not a regular file")},
		{Name: "no such module", Args: args("-module", dir+"/none", "-list"), Code: 1, Words: args("-module "+dir+"/none", "no such file")},
		{Name: "wrong PTX", Args: args("-ptx", file(t, []byte(strings.Replace(probes, "trap;", "tarp;", 1))), "-list"), Code: 1, Words: args("CUDA_ERROR_INVALID_PTX (218)", "line 36")},
		{Name: "no PTX", Args: args("-module", full, "-list"), Code: 1, Words: args("cuModuleLoad: CUDA_ERROR_")},
	} {
		t.Run(c.Name, func(t *testing.T) {
			if !slices.Contains(ofTheDriver, c.Name) {
				cutest.ProvenOnSoft(t)
			}
			p := launch(t, nil, c.Args...)
			p.Fails(c.Code, c.Words...)
			require.Empty(t, programs.Find(p, "Launching"), p.Dump())
			require.NoFileExists(t, out)
		})
	}
	if !knowsParameters(t) {
		return // cuFuncGetParamInfo: a kernel of a file is launched with what it is given
	}
	launch(t, nil, probe("through", "zero:4", "f32:1", "u32:1")...).Fails(1, `argument 2, "f32:1", is no u32: kernel through takes 3 arguments`)
	launch(t, nil, probe("leave")...).Fails(1, "kernel leave takes 1 argument (of 8 bytes) and was given 0")
	launch(t, nil, probe("nothing", "u8:1")...).Fails(1, "kernel nothing takes no arguments and was given 1")
	launch(t, nil, probe("through", "zero:4", "u32:0", "u64:0")...).
		Fails(1, `argument 3, "u64:0", has 8 bytes where kernel through takes 4: it takes 3 arguments (of 8, 4 and 4 bytes)`)
}

// TestLaunchedKernelDies: a kernel that dies is exit 1 with the driver's
// words, and where it died if that is known; no file is written.
func TestLaunchedKernelDies(t *testing.T) {
	programs.Parallel(t)
	ptx, out := file(t, []byte(probes)), filepath.Join(t.TempDir(), "out")
	trapped := launch(t, nil, "-ptx", ptx, "-kernel", "die", "zero:4:"+out).Fails(1, "kernel die failed: ", "(719)")
	lost := launch(t, nil, "-builtin", "memory", "-kernel", "fill_bytes", "u64:0", "u64:1", "u8:1").
		Fails(1, "kernel fill_bytes failed: ", "CUDA_ERROR_ILLEGAL_ADDRESS (700)")
	require.NoFileExists(t, out)
	require.Contains(t, lost, "give the kernel buffers for its addresses, as large as its other arguments say")
	require.NotContains(t, trapped, "give the kernel buffers")
	if cutest.Kind() == cu.Soft {
		require.Contains(t, trapped, "launch: ptx: kernel die, line 36, block [0 0 0], thread [0 0 0]: trap\n  kernel die failed: CUDA_ERROR_LAUNCH_FAILED (719), noticed by cu")
		require.Contains(t, lost, "illegal address 0x0: no memory is mapped anywhere\n  kernel fill_bytes failed: CUDA_ERROR_ILLEGAL_ADDRESS (700), noticed by cu")
		return
	}
	for _, said := range []string{trapped, lost} {
		first, _, _ := strings.Cut(said, "\n")
		require.LessOrEqual(t, len(first), 200, "what died is said on a line of its own")
		require.Contains(t, said, "--driver soft runs PTX, too, and names the line and thread that fail")
	}
}

// A kernel that never ends is given up, with many launches queued behind it, or
// when somebody says so.
func TestLaunchEndless(t *testing.T) {
	programs.Parallel(t)
	ptx, out := file(t, []byte(probes)), filepath.Join(t.TempDir(), "out")
	launch(t, nil, "-timeout", "300ms", "-repeat", "100000", "-ptx", ptx, "-kernel", "spin", "zero:4:"+out).
		Fails(4, "kernel spin is not done after 300ms", "-timeout")
	p := launch(t, nil, "-ptx", ptx, "-kernel", "spin", "zero:4:"+out)
	p.WaitLine("Launching spin")
	p.Signal(syscall.SIGTERM)
	p.Fails(1, "interrupted")
	require.NoFileExists(t, out)
}
