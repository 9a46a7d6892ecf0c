package ptx

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const pointed = formHeader + `
.func (.param .b32 r) plus(.param .b32 a, .param .b32 b) { .reg .b32 %r<3>; ld.param.u32 %r1, [a]; ld.param.u32 %r2, [b]; add.u32 %r1, %r1, %r2; st.param.b32 [r], %r1; ret; }
.func (.param .b32 r) minus(.param .b32 a, .param .b32 b) { .reg .b32 %r<3>; ld.param.u32 %r1, [a]; ld.param.u32 %r2, [b]; sub.u32 %r1, %r1, %r2; st.param.b32 [r], %r1; ret; }
.func other(.param .b64 a) { ret; }
.func (.param .b32 r) same(.param .b32 a, .param .b32 b);
.alias same, minus;
`

const callPointed = `{ .reg .b32 temp_param_reg;
.param .b32 param0; st.param.b32 [param0+0], %r1;
.param .b32 param1; st.param.b32 [param1+0], %r2;
.param .b32 retval0;
prototype_0 : .callprototype (.param .b32 _) _ (.param .b32 _, .param .b32 _);
call (retval0), %rd3, (param0, param1), prototype_0;
ld.param.b32 %r3, [retval0+0]; }
st.u32 [%rd2], %r3;`

// Functions are called by their addresses, which only those of the signature have.
func TestIndirectCalls(t *testing.T) {
	kernel := func(f string) string {
		return pointed + strings.TrimPrefix(entry(start+"mov.u64 %rd3, "+f+"; ld.v2.u32 {%r1, %r2}, [%rd1];\n"+callPointed), formHeader)
	}
	require.EqualValues(t, 12, results(t, kernel("plus"), 5<<32|7)[0])
	require.EqualValues(t, 2, results(t, kernel("minus"), 5<<32|7)[0])
	require.EqualValues(t, 2, results(t, kernel("same"), 5<<32|7)[0])
	for _, f := range []string{"other", "12345", "0"} {
		require.Equal(t, BadJump, dies(t, kernel(f), 1, params(uint64(base), uint64(base+64)), 0).Kind, f)
	}
	_, err := Parse(kernel("nothing"))
	require.ErrorContains(t, err, "there is no variable nothing")
	_, err = Parse(strings.Replace(kernel("plus"), "param1), prototype_0", "param1), prototype_1", 1))
	require.ErrorContains(t, err, "there is no prototype prototype_1")
}

// Variables begin with addresses of functions and of each other, whole or by bytes.
func TestInitialAddresses(t *testing.T) {
	m := parsed(t, pointed+`
.global .align 8 .u64 table[2] = {plus, minus};
.global .align 4 .u32 number = 5;
.global .align 8 .b8 mixed[24] = {1, 0, 0, 0, 0, 0, 0, 0, 0xFF(generic(number)+4), 0xFF00(generic(number)+4), 0xFF0000(generic(number)+4), 0xFF000000(generic(number)+4), 0xFF00000000(generic(number)+4), 0xFF0000000000(generic(number)+4), 0xFF000000000000(generic(number)+4), 0xFF00000000000000(generic(number)+4), 0xFF(plus), 0xFF00(plus)};
.const .align 8 .u64 both[2] = {generic(number), table+8};
`)
	address := func(name string) uint64 {
		return map[string]uint64{"number": 0x1122334455667788, "table": 0x1000}[name]
	}
	at := func(name string) uint64 { return m.functions[name].address() }
	words := func(name string) (list []uint64) {
		for b := m.Initial(name, address); len(b) >= 8; b = b[8:] {
			list = append(list, binary.LittleEndian.Uint64(b))
		}
		return list
	}
	require.Equal(t, []uint64{at("plus"), at("minus")}, words("table"))
	require.Equal(t, []uint64{1, 0x112233445566778c}, words("mixed"))
	require.Equal(t, []uint64{0x1122334455667788, 0x1008}, words("both"))
	require.NotEqual(t, at("plus"), at("minus"))
	for _, bad := range []string{"0xFFF(number)", "0x1FE(number)", "0(number)", "0xFF(nobody)", "0xFF(number"} {
		_, err := Parse(pointed + ".global .u32 number; .global .b8 x[2] = {" + bad + "};")
		require.Error(t, err, bad)
	}
}

// A jump goes to the label that its index says, and nowhere else.
func TestBranchIndexed(t *testing.T) {
	text := entry(start + `ld.u32 %r1, [%rd1];
$L_brx_0: .branchtargets $L__BB0_1, $L__BB0_2, $L__BB0_1;
brx.idx %r1, $L_brx_0;
$L__BB0_1: mov.u32 %r2, 11; bra.uni $L__BB0_3;
$L__BB0_2: mov.u32 %r2, 12; bra.uni $L__BB0_3;
$L__BB0_3: st.u32 [%rd2], %r2;`)
	for i, want := range []uint64{11, 12, 11} {
		require.Equal(t, want, results(t, text, uint64(i))[0])
	}
	require.Equal(t, BadJump, dies(t, text, 1, params(uint64(base), uint64(base+64)), 3).Kind)
	_, err := Parse(strings.Replace(text, "$L__BB0_2,", "$L__BB0_9,", 1))
	require.ErrorContains(t, err, "there is no label $L__BB0_9")
}

// Room that is asked for while a function runs is its own until it returns.
func TestAlloca(t *testing.T) {
	text := pointed + strings.TrimPrefix(entry(start+`
stacksave.u64 %rd6;
ld.u64 %rd5, [%rd1]; alloca.u64 %rd4, %rd5, 16; st.local.u32 [%rd4], 77;
mov.u64 %rd3, plus; mov.u32 %r1, 1; mov.u32 %r2, 2;
`+callPointed+`
ld.local.u32 %r4, [%rd4]; add.u32 %r3, %r3, %r4; st.u32 [%rd2], %r3;
stackrestore.u64 %rd6; alloca.u64 %rd7, %rd5, 16; sub.u64 %rd7, %rd7, %rd4; st.u64 [%rd2+8], %rd7;`), formHeader)
	require.Equal(t, []uint64{80, 0}, results(t, text, 64)[:2])
	require.Equal(t, StackOverflow, dies(t, text, 1, params(uint64(base), uint64(base+64)), 1<<40).Kind)
}

const printDeclared = `
.extern .func (.param .b32 func_retval0) vprintf (.param .b64 vprintf_param_0, .param .b64 vprintf_param_1);
.extern .func __assertfail (.param .b64 __assertfail_param_0, .param .b64 __assertfail_param_1, .param .b32 __assertfail_param_2, .param .b64 __assertfail_param_3, .param .b64 __assertfail_param_4) .noreturn ;
`

// formatted is what a kernel prints of arguments: those that are one word or two, or
// strings.
func formatted(t *testing.T, format string, args ...any) string {
	t.Helper()
	memory := make([]byte, 4096)
	at := 512
	for k, a := range args {
		if s, ok := a.(string); ok {
			copy(memory[at:], s)
			args[k] = uint64(base + at)
			at += len(s) + 1
		}
	}
	copy(memory, params(args...))
	copy(memory[256:], format)
	text := formHeader + printDeclared + strings.TrimPrefix(entry(start+`
{ .param .b64 param0; st.param.b64 [param0+0], %rd2; .param .b64 param1; st.param.b64 [param1+0], %rd1;
.param .b32 retval0;
call.uni (retval0), vprintf, (param0, param1);
ld.param.b32 %r1, [retval0+0]; }
st.u32 [%rd1+4088], %r1;`), formHeader)
	var out bytes.Buffer
	err := parsed(t, text).Run(context.Background(), "k", Launch{
		Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, Params: params(uint64(base), uint64(base+256)), Memory: host{base, memory}, Stdout: &out,
	})
	require.NoError(t, err)
	require.EqualValues(t, len(args), memory[4088], format)
	return out.String()
}

// Kernels print what C prints.
func TestPrint(t *testing.T) {
	for _, tc := range []struct {
		format string
		args   []any
		want   string
	}{
		{"plain %%\n", nil, "plain %\n"},
		{"%d %u %x %X %o %c", []any{int32(-5), uint32(4000000000), uint32(0xabc), uint32(0xabc), uint32(8), int32('x')}, "-5 4000000000 abc ABC 10 x"},
		{"[%8d|%-8d|%08d|%+d|% d|%#x|%#o|%.5d|%8.3d]", []any{int32(123), int32(123), int32(-123), int32(1), int32(1), uint32(255), uint32(8), int32(42), int32(7)}, "[     123|123     |-0000123|+1| 1|0xff|010|00042|     007]"},
		{"%lld %llu %llx %ld %hd", []any{int64(-1234567890123), ^uint64(0), uint64(1) << 40, int64(-5), int32(7)}, "-1234567890123 18446744073709551615 10000000000 -5 7"},
		{"%d %lld", []any{int32(1), int64(2)}, "1 2"},
		{"%f %.3f %10.2f|%-10.1f|%e %.2E %g %G %g", []any{1.5, 3.14159265, 2.71828, 9.99, 12345.678, 0.00012, 1e-10, 1e20, 100000.0}, "1.500000 3.142       2.72|10.0      |1.234568e+04 1.20E-04 1e-10 1E+20 100000"},
		{"%s|%10s|%-10s|%.3s|", []any{"word", "right", "left", "cut off"}, "word|     right|left      |cut|"},
		{"%f %5.1f %F %g", []any{math.Inf(1), math.Inf(-1), math.Inf(1), math.NaN()}, "inf  -inf INF nan"},
		{"%*d %-*d|", []any{int32(6), int32(42), int32(4), int32(7)}, "    42 7   |"},
		{"%.*f %d", []any{int32(2)}, "%.*f 2"}, // so says an H200
		{"%p %p", []any{uint64(0), uint64(0x7f00)}, "(nil) 0x7f00"},
		{"%hd %hu %hx %hhx %hhi %02hhx", []any{int32(70000), int32(-1), int32(-1), int32(-2), int32(200), int32(10)}, "4464 65535 ffff fe -56 0a"},
		{"%012a|%-12A|%+a", []any{1.5, 1.5, 2.0}, "0x00001.8p+0|0X1.8P+0    |+0x1p+1"},
		{"%a %#.0f %.0e", []any{1.5, 3.0, 5e7}, "0x1.8p+0 3. 5e+07"},
		{"%", nil, "%"},
		{"%y", nil, "%y"},
		{strings.Repeat("%d", 33) + "%%", slices.Repeat([]any{int32(7)}, 32), strings.Repeat("7", 32) + "%d%"},
	} {
		require.Equal(t, tc.want, formatted(t, tc.format, tc.args...), tc.format)
	}
}

// A printf ends, whatever it is given.
func TestPrintIsBounded(t *testing.T) {
	p := printer{t: &thread{}, out: make([]byte, maxPrinted)}
	p.print("%%%%")
	require.Len(t, p.out, maxPrinted)
}

// An assertion that does not hold is reported, and ends the launch.
func TestAssert(t *testing.T) {
	memory := make([]byte, 128)
	copy(memory, "n > 0\x00k.cu\x00\x00\x00\x00void f()\x00")
	text := formHeader + printDeclared + strings.TrimPrefix(entry(start+`
add.u64 %rd3, %rd1, 6; add.u64 %rd4, %rd1, 14; mov.u64 %rd5, 1; mov.u32 %r1, 12;
{ .param .b64 param0; st.param.b64 [param0+0], %rd1; .param .b64 param1; st.param.b64 [param1+0], %rd3; .param .b32 param2; st.param.b32 [param2+0], %r1;
.param .b64 param3; st.param.b64 [param3+0], %rd4; .param .b64 param4; st.param.b64 [param4+0], %rd5;
call.uni __assertfail, (param0, param1, param2, param3, param4); }`), formHeader)
	var said bytes.Buffer
	err := parsed(t, text).Run(context.Background(), "k", Launch{
		Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, Params: params(uint64(base), uint64(base+64)), Memory: host{base, memory}, Stderr: &said,
	})
	var fault *Fault
	require.ErrorAs(t, err, &fault)
	require.Equal(t, Assert, fault.Kind)
	require.Equal(t, "k.cu:12: void f(): block: [0,0,0], thread: [0,0,0] Assertion `n > 0` failed.\n", said.String())
}

// A function called by an alias, wherever that is declared, has shared variables of its
// own.
func TestAliases(t *testing.T) {
	for _, call := range []string{"call g;", "mov.u64 %rd3, g;\nP: .callprototype _ ();\ncall %rd3, P;"} {
		text := formHeader + `.shared .align 4 .b8 mine[4];
.func f() { .shared .align 4 .b8 its[4]; st.shared.u32 [its], 99; ret; }
.func g();
` + strings.TrimPrefix(entry(start+"st.shared.u32 [mine], 5;\n"+call+"\nld.shared.u32 %r1, [mine]; st.u32 [%rd2], %r1;"), formHeader) + ".alias g, f;\n"
		require.EqualValues(t, 5, results(t, text)[0], call)
	}
}
