package ptx

import (
	"fmt"
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
		formHeader + ".entry k() { .reg .b32 %r<70000>;\n" + registers.String() + "}": "more than 65536 registers",
		formHeader + ".entry k() {\n" + many("mov.u64 _, 0;\n", 70000) + "}":          "more than 65536 registers",
		formHeader + ".entry k() {" + many("{", 1<<20):                                "nested too deeply",
		formHeader + ".entry k() {" + many("{}", 1<<19) + "}":                         "",
		formHeader + ".entry k() {" + many(".reg .b32 %r<9>;", 1<<16) + "}":           "declared twice",
		formHeader + ".entry k() {" + many("@%p", 1<<18):                              "there is no register",
		formHeader + ".global .b8 x" + many("[1]", 1<<18) + ";":                       "more than 64 dimensions",
		formHeader + ".global .b8 x" + many("[1]", 60) + " = " + many("{", 1<<18):     "is no number",
		formHeader + ".global .b8 x[1][1000000000] = {{}};":                           "too long",
		formHeader + ".global .b8 x[9][9000000] = {{}, {}, {}};":                      "too long",
		formHeader + ".global .b8 x[1000000000000];":                                  "",
		formHeader + ".global .b8 x[1000] = {" + many("0,", 1<<18):                    "is no number",
		formHeader + ".local .b8 x[1000000000000];":                                   "not supported",
		entry(".local .b8 x[1000000000000];"):                                         "too large",
		entry("add" + many(".cc", 1<<18) + ".u32 %r1, %r1, %r1;"):                     "not known",
		entry("add" + many(".u32", 1<<18) + " %r1, %r1, %r1;"):                        "a type too many",
		entry("mov.b64 %rd1, {" + many("%r1,", 1<<18)):                                "more than 8 values",
		entry("call f, (" + many("a,", 1<<18)):                                        "",
		entry(many("L: ", 1<<18)):                                                     "there twice",
		entry(many("bra L;", 1<<18)):                                                  "no label L",
		entry("add.u32 %r" + many("1", 1<<20) + ", 0, 0;"):                            "no register",
		entry("add.u32 %r1, %r1, " + many("1", 1<<20) + ";"):                          "is no number",
		entry("ld.param.u64 %rd1, [in" + many("+1", 1<<18) + "];"):                    "unexpected",
		formHeader + many(".visible ", 1<<18):                                         "",
		formHeader + many("/**/", 1<<18):                                              "",
		formHeader + ".section .debug {" + many("{", 1<<20):                           "",
		formHeader + ".func " + many("(", 1<<20):                                      "belongs",
		formHeader + ".entry k(" + many(".param .u64 a,", 1<<16):                      "bytes of parameters",
		formHeader + many(".func f();\n", 1<<16):                                      "",
		".version 7.4\n.target sm_75" + many(", debug", 1<<18):                        "",
	}
}

// Texts of at most a few MiB are read, or refused, in bounded time and memory,
// whatever they ask for: all that is ever allocated counts here.
func TestBounds(t *testing.T) {
	for text, say := range hostile() {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := worked(t)
		_, err := Parse(text)
		took := worked(t) - began
		runtime.ReadMemStats(&after)
		name := text[len(formHeader):min(len(text), len(formHeader)+60)]
		if say != "" {
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
