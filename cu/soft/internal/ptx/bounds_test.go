package ptx

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// hostile are texts that ask for much, and what is said of them; nothing if they
// are only long.
func hostile() map[string]string {
	many := strings.Repeat
	var chain strings.Builder // each entry calls a function that calls the next one
	for n := range 6000 {
		fmt.Fprintf(&chain, ".func f%d() { call f%d; }\n.entry e%d() { call f0; }\n", n, n+1, n)
	}
	chain.WriteString(".func f6000() {}\n")
	var registers strings.Builder
	for n := range 70000 {
		fmt.Fprintf(&registers, "add.u32 %%r%d, %%r%d, 1;\n", n, n)
	}
	var products, sums strings.Builder // far from each other
	for n := range 60000 {
		fmt.Fprintf(&products, "mul.f64 %%x%d, %%x60000, %%x60000;\n", n)
		fmt.Fprintf(&sums, "add.f64 %%x60001, %%x%d, %%x60000;\n", n)
	}
	return map[string]string{
		formHeader + ".entry k() { .reg .f64 %x<60002>;\n" + products.String() + sums.String() + "}": "",
		formHeader + chain.String(): "call too many functions",
		formHeader + ".entry k() { .reg .b32 %r<70000>;\n" + registers.String() + "}":                       "more than 65536 registers",
		formHeader + ".entry k() {\n" + many("mov.u64 _, 0;\n", 70000) + "}":                                "more than 65536 registers",
		formHeader + ".entry k() {" + many("{", 1<<20):                                                      "nested too deeply",
		formHeader + ".entry k() {" + many("{}", 1<<19) + "}":                                               "",
		formHeader + ".entry k() {" + many(".reg .b32 %r<9>;", 1<<16) + "}":                                 "declared twice",
		formHeader + ".entry k() {" + many("@%p", 1<<18):                                                    "there is no register",
		formHeader + ".global .b8 x" + many("[1]", 1<<18) + ";":                                             "more than 64 dimensions",
		formHeader + ".global .b8 x" + many("[1]", 60) + " = " + many("{", 1<<18):                           "is no number",
		formHeader + ".global .b8 x[1][1000000000] = {{}};":                                                 "too long",
		formHeader + ".global .b8 x[9][9000000] = {{}, {}, {}};":                                            "too long",
		formHeader + ".global .b8 x[1000000000000];":                                                        "",
		formHeader + ".global .b8 x[1000] = {" + many("0,", 1<<18):                                          "is no number",
		formHeader + ".local .b8 x[1000000000000];":                                                         "not supported",
		entry(".local .b8 x[1000000000000];"):                                                               "too large",
		entry("add" + many(".cc", 1<<18) + ".u32 %r1, %r1, %r1;"):                                           "not known",
		entry("add" + many(".u32", 1<<18) + " %r1, %r1, %r1;"):                                              "a type too many",
		entry("mov.b64 %rd1, {" + many("%r1,", 1<<18)):                                                      "more than 8 values",
		entry("call f, (" + many("a,", 1<<18)):                                                              "",
		entry(many("L: ", 1<<18)):                                                                           "there twice",
		entry(many("bra L;", 1<<18)):                                                                        "no label L",
		entry("add.u32 %r" + many("1", 1<<20) + ", 0, 0;"):                                                  "no register",
		entry("add.u32 %r1, %r1, " + many("1", 1<<20) + ";"):                                                "is no number",
		entry("ld.param.u64 %rd1, [in" + many("+1", 1<<18) + "];"):                                          "unexpected",
		formHeader + many(".visible ", 1<<18):                                                               "",
		formHeader + many(";", 1<<23):                                                                       "",
		formHeader + many("/**/", 1<<18):                                                                    "",
		formHeader + ".section .debug {" + many("{", 1<<20):                                                 "",
		formHeader + ".func " + many("(", 1<<20):                                                            "belongs",
		formHeader + ".entry k(" + many(".param .u64 a,", 1<<16):                                            "bytes of parameters",
		formHeader + many(".func f();\n", 1<<16):                                                            "",
		entry("L: ret; ts: .branchtargets " + many("L,", 1<<18) + "L;\n" + many("brx.idx %r1, ts;", 1<<12)): "",
		".version 7.4\n.target sm_75" + many(", debug", 1<<18):                                              "",
	}
}

// hostileLoops are of functions whose warps keep in step, for which loops are looked for,
// and what is said of them.
func hostileLoops() map[string]string {
	old := ".version 7.4\n.target sm_52\n.address_size 64\n.entry k() { .reg .pred %p<2>; .reg .b64 %rd<2>; st.volatile.u64 [%rd1], %rd1;\n"
	var begins, ends strings.Builder // within each other
	for n := range 20000 {
		fmt.Fprintf(&begins, "L%d:\n", n)
		fmt.Fprintf(&ends, "@%%p1 bra L%d;\n", 19999-n)
	}
	table := ".reg .b32 %r1; L: ret; ts: .branchtargets " + strings.Repeat("L,", 1<<12) + "L;\n"
	_, kernel, _ := strings.Cut(old, "64\n") // without the header
	half := kernel + table + strings.Repeat("@%p1 brx.idx %r1, ts;\n", 1<<7) + "}"
	return map[string]string{
		old + begins.String() + ends.String() + "}":                           "",
		old + "L: " + strings.Repeat("@%p1 bra L;\n", 200000) + "}":           "",
		old + strings.Repeat("st.volatile.u64 [%rd1], %rd1;\n", 100000) + "}": "",
		old + table + strings.Repeat("@%p1 brx.idx %r1, ts;\n", 1<<12) + "}":  "ways to go",
		old + "}\n" + numbered(half, 3):                                       "ways to go", // together
	}
}

// fine is said of no text.
const fine = "fine"

// hostileProducts are kernels that are long to look through for products and sums.
func hostileProducts() (texts []string) {
	each := func(n int, format string) string { // of a number and the next
		var b strings.Builder
		for k := range n {
			fmt.Fprintf(&b, format, k, k+1)
		}
		return b.String()
	}
	for _, body := range []string{
		"T: .branchtargets " + each(5000, "L%[1]d, ") + "E;\nmul.f32 %x1, %x2, %x3; add.f32 %x4, %x1, %x5;\n" + each(5000, "L%[1]d: brx.idx %%r, T;\n") + "E:\n",
		"mul.f32 %x0, %x59999, %x59999;\n" + each(20000, "mov.f32 %%x%[2]d, %%x%[1]d;\n") + each(20000, "add.f32 %%x%[1]d, %%x20000, %%x59999;\n"),
		"mul.f32 %x0, %x59999, %x59999;\n" + each(50000, "add.f32 %%x%[2]d, %%x0, %%x59999;\n"),
		strings.Repeat("mul.f32 %x0, %x1, %x2; add.f32 %x1, %x1, %x3; add.f32 %x2, %x0, %x3;\n", 40000),
		each(50000, "mul.f32 %%x%[1]d, %%x1, %%x2;\n") + "add.f32 %x1, %x1, %x3;\n" + each(50000, "add.f32 %%x2, %%x%[1]d, %%x3;\n"),
		each(20000, "L%[1]d: mul.f32 %%x%[1]d, %%x2, %%x3; add.f32 %%x4, %%x%[1]d, %%x%[2]d; @%%p bra L%[1]d;\n"),
		each(20000, "L%[1]d: mul.f32 %%x%[1]d, %%x2, %%x3; add.f32 %%x4, %%x%[1]d, %%x%[2]d;\n") + each(20000, "@%%p bra L%[1]d;\n"),
	} {
		texts = append(texts, formHeader+".entry k() { .reg .f32 %x<60000>; .reg .pred %p; .reg .b32 %r;\n"+body+"}")
	}
	return texts
}

// numbered is a kernel, several times, with names of their own.
func numbered(kernel string, times int) string {
	var all strings.Builder
	for n := range times {
		all.WriteString(strings.Replace(kernel, "k()", fmt.Sprintf("k%d()", n), 1) + "\n")
	}
	return all.String()
}

// Texts of at most a few MiB are read, or refused, in bounded time and memory,
// whatever they ask for: all that is ever allocated counts here.
func TestBounds(t *testing.T) {
	texts := hostile()
	maps.Copy(texts, hostileLoops())
	for _, text := range hostileProducts() {
		texts[text] = fine
	}
	for text, say := range texts {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := worked(t)
		_, err := Parse(text)
		took := worked(t) - began
		runtime.ReadMemStats(&after)
		name := text[len(formHeader):min(len(text), len(formHeader)+60)]
		switch say {
		case "":
		case fine:
			require.NoError(t, err, name)
		default:
			require.ErrorContains(t, err, say, name)
		}
		if err != nil {
			var bad *Error
			require.ErrorAs(t, err, &bad, name)
			require.Positive(t, bad.Line, name)
			require.LessOrEqual(t, bad.Line, 1+strings.Count(text, "\n"), name)
		}
		require.LessOrEqual(t, after.TotalAlloc-before.TotalAlloc, uint64(300<<20), name)
		require.Less(t, took, 30*time.Second, name) // most take milliseconds; an emulator 20 times that
		require.LessOrEqual(t, len(errorText(err)), 500, name)
	}
}

// worked is how long the process has been on a CPU, whatever else the machine did.
func worked(t *testing.T) time.Duration {
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// slow are bodies of kernels that never end and whose instructions take long, with
// what stands before.
func slow() map[string][2]string {
	var globals, registers, constants strings.Builder
	for n := range 60000 {
		fmt.Fprintf(&globals, ".global .b8 g%d;\n", n)
		fmt.Fprintf(&registers, "mov.u64 %%q, g%d;\n", n)
		fmt.Fprintf(&constants, ".const .b8 c%d;\n", n)
	}
	return map[string][2]string{
		"registers": {globals.String() + ".func f() { .reg .b64 %q; ret;\n" + registers.String() + "}\n", "L: call f; bra L;"},
		"printing": {".extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);\n" +
			".global .b8 s[65536] = {" + strings.Repeat("37,115,", 32767) + "0};\n.global .u64 args[32] = {" + strings.Repeat("s,", 31) + "s};\n",
			`.param .b64 a; .param .b64 b; .param .b32 r; mov.u64 %rd1, s; st.param.b64 [a], %rd1; mov.u64 %rd1, args; st.param.b64 [b], %rd1;
L: call (r), vprintf, (a, b); bra L;`},
		"constants":   {constants.String(), "mov.u64 %rd1, 0; L: isspacep.const %p1, %rd1; bra L;"},
		"convergence": {"", "L: vote.sync.ballot.b32 %r1, %p1, -1; bra L;"},
		"nothing":     {"", "L: bra L;"},
	}
}

// A launch that nobody wants ends soon, whatever its instructions are.
func TestCancelIsPrompt(t *testing.T) {
	for name, c := range slow() {
		m := parsed(t, formHeader+c[0]+strings.TrimPrefix(entry(c[1]), formHeader))
		memory, places, at := make([]byte, 1<<18), map[string]uint64{}, uint64(0)
		for _, v := range m.Variables() {
			at = alignUp(at, uint64(v.Align))
			places[v.Name] = base + at
			at += uint64(v.Size)
		}
		address := func(name string) uint64 { return places[name] }
		for v, at := range places {
			copy(memory[at-base:], m.Initial(v, address))
		}
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		began := time.Now()
		err := m.Run(ctx, "k", Launch{
			Grid: [3]uint32{4, 1, 1}, Block: [3]uint32{1024, 1, 1}, Params: params(uint64(base), uint64(base)),
			Memory: host{base, memory}, Address: address,
		})
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded, name)
		require.Less(t, time.Since(began), 10*time.Second, name) // most take milliseconds more than what they have
	}
}
