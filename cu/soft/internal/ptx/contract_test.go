package ptx

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A product and a sum that say nothing of rounding are rounded once, where the GPU's
// assembler makes one instruction of them: what it does with each of these was read off
// its machine code.
func TestContract(t *testing.T) {
	x, y := 1+0x1p-30, 1-0x1p-30 // the product is 1 - 2⁻⁶⁰
	const load = start + ".reg .f64 %g<10>; .reg .f32 %h<5>; ld.v2.f64 {%g1, %g2}, [%rd1]; mov.f64 %g5, 0d3FF0000000000000;\n" +
		"mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0;\n"
	const product = "mul.f64 %g3, %g1, %g2; "
	const once, no = -0x1p-60, 0
	for _, tc := range []struct {
		name, body string
		want       float64
	}{
		{"sum", product + "add.f64 %g4, %g3, 0dBFF0000000000000;", once},
		{"sum of another", product + "add.f64 %g4, 0dBFF0000000000000, %g3;", once},
		{"difference", product + "sub.f64 %g4, %g3, %g5;", once},
		{"difference from another", product + "sub.f64 %g4, %g5, %g3;", -once},
		{"rounded product", "mul.rn.f64 %g3, %g1, %g2; sub.f64 %g4, %g3, %g5;", no},
		{"rounded sum", product + "sub.rn.f64 %g4, %g3, %g5;", no},

		{"behind a label", product + "there: sub.f64 %g4, %g3, %g5;", once},
		{"behind a barrier", product + "bar.sync 0; sub.f64 %g4, %g3, %g5;", once},
		{"where is jumped to", product + "@!%p1 bra there; add.f64 %g5, %g5, 0d0000000000000000; there: sub.f64 %g4, %g3, %g5;", no},
		{"behind a jump", product + "mov.f64 %g4, %g5; @!%p1 bra there; sub.f64 %g4, %g3, %g5; there:", no},
		{"also behind a jump", product + "sub.f64 %g4, %g3, %g5; @!%p1 bra there; sub.f64 %g6, %g3, %g5; st.f64 [%rd2+8], %g6; there:", no},
		{"behind an exit", product + "@!%p1 exit; sub.f64 %g4, %g3, %g5;", no},

		{"behind a jump over nothing", product + "@!%p1 bra there; add.f64 %g6, %g1, %g2; there: sub.f64 %g4, %g3, %g5;", once},
		{"behind a jump over a jump over nothing", product + "@!%p1 bra there; @!%p1 bra there; add.f64 %g6, %g1, %g2; there: sub.f64 %g4, %g3, %g5;", once},
		{"behind a division", product + "div.rn.f64 %g6, %g1, %g2; sub.f64 %g4, %g3, %g5; st.f64 [%rd2+8], %g6;", no},
		{"behind a root", product + "sqrt.rn.f32 %h1, %h1; sub.f64 %g4, %g3, %g5;", no},
		{"behind a division of integers", product + "div.u32 %r2, %r1, 3; sub.f64 %g4, %g3, %g5;", once},
		{"behind a division of long integers", product + "rem.s64 %rd3, %rd1, 3; sub.f64 %g4, %g3, %g5;", no},
		{"behind a fence", product + "membar.gl; sub.f64 %g4, %g3, %g5;", no},
		{"behind a store", product + "st.u32 [%rd2+8], %r1; sub.f64 %g4, %g3, %g5;", once},
		{"behind a guarded store", product + "@%p1 st.u32 [%rd2+8], %r1; sub.f64 %g4, %g3, %g5;", no},

		{"also stored", product + "sub.f64 %g4, %g3, %g5; st.f64 [%rd2+8], %g3;", no},
		{"also compared", product + "sub.f64 %g4, %g3, %g5; setp.gt.f64 %p2, %g3, %g1; @%p2 st.f64 [%rd2+8], %g5;", no},
		{"also a factor", product + "sub.f64 %g4, %g3, %g5; mul.f64 %g6, %g3, %g1; st.f64 [%rd2+8], %g6;", no},
		{"also for nothing", product + "sub.f64 %g4, %g3, %g5; mul.f64 %g6, %g3, %g1; add.f64 %g6, %g6, %g1;", once},
		{"in three sums", product + "sub.f64 %g4, %g3, %g5; add.f64 %g6, %g3, %g1; add.f64 %g7, %g3, %g2; st.v2.f64 [%rd2+16], {%g6, %g7};", once},
		{"twice in a sum", product + "add.f64 %g3, %g3, %g3; sub.f64 %g4, %g3, %g5; sub.f64 %g4, %g4, %g5;", no},
		{"twice in a sum, and in another", product + "sub.f64 %g4, %g3, %g5; add.f64 %g6, %g3, %g3; st.f64 [%rd2+8], %g6;", no},

		{"two, of which it names the first", product + "mul.f64 %g6, %g1, 0d3FF0000000000000; sub.f64 %g4, %g3, %g6;", -0x1p-30 - 0x1p-60},
		{"two, the first made last", "mul.f64 %g6, %g1, 0d3FF0000000000000; " + product + "sub.f64 %g4, %g3, %g6;", -0x1p-30 - 0x1p-60},
		{"two, of which it names the other first", product + "mul.f64 %g6, %g1, 0d3FF0000000000000; sub.f64 %g4, %g6, %g3;", 0x1p-30},
		{"two, the first in another sum, too", product + "mul.f64 %g6, %g1, 0d3FF0000000000000; sub.f64 %g4, %g3, %g6; sub.f64 %g7, %g3, %g5; st.f64 [%rd2+8], %g7;", -0x1p-30},
		{"the other sum of that", product + "mul.f64 %g6, %g1, 0d3FF0000000000000; sub.f64 %g7, %g3, %g6; sub.f64 %g4, %g3, %g5; st.f64 [%rd2+8], %g7;", no},
		{"two, both in two sums", "mul.f64 %g6, %g1, 0d3FF0000000000000; " + product + "sub.f64 %g4, %g3, %g6; add.f64 %g7, %g6, %g3; st.f64 [%rd2+8], %g7;", -0x1p-30 - 0x1p-60},

		{"operand changed", product + "mov.f64 %g1, %g2; sub.f64 %g4, %g3, %g5;", once},
		{"operand replaced", "mul.f64 %g1, %g1, %g2; sub.f64 %g4, %g1, %g5;", once},
		{"register used before", "mov.f64 %g3, %g2; st.f64 [%rd2+8], %g3; " + product + "sub.f64 %g4, %g3, %g5;", once},
		{"register used again", product + "sub.f64 %g4, %g3, %g5; mov.f64 %g3, %g1; st.f64 [%rd2+8], %g3;", once},
		{"guarded sum", product + "mov.f64 %g4, %g5; @%p1 sub.f64 %g4, %g3, %g5;", once},
		{"guarded product", "mov.f64 %g3, %g5; @%p1 mul.f64 %g3, %g1, %g2; sub.f64 %g4, %g3, %g5;", no},
		{"written by a guarded one", product + "@!%p1 mov.f64 %g3, %g1; sub.f64 %g4, %g3, %g5;", no},

		{"copied", product + "mov.f64 %g6, %g3; sub.f64 %g4, %g6, %g5;", once},
		{"negated", product + "neg.f64 %g6, %g3; add.f64 %g4, %g6, %g5;", -once},
		{"negated twice", product + "neg.f64 %g6, %g3; neg.f64 %g7, %g6; sub.f64 %g4, %g5, %g7;", -once},
		{"with itself, negated", product + "neg.f64 %g6, %g3; add.f64 %g4, %g3, %g6;", no},
		{"with itself, copied", product + "mov.f64 %g6, %g3; sub.f64 %g4, %g3, %g6;", no},
		{"also negated", product + "neg.f64 %g6, %g3; add.f64 %g4, %g6, %g5; sub.f64 %g7, %g3, %g5; st.f64 [%rd2+8], %g7;", -once},
		{"without its sign", product + "abs.f64 %g6, %g3; sub.f64 %g4, %g6, %g5;", no},
	} {
		text := entry(load + tc.body + "\nst.f64 [%rd2], %g4;")
		in := []uint64{math.Float64bits(x), math.Float64bits(y)}
		require.Equal(t, tc.want, math.Float64frombits(results(t, text, in...)[0]), tc.name)
		debug := strings.Replace(text, ".target sm_75", ".target sm_75, debug", 1)
		require.NotEqual(t, text, debug)
		m, err := ParseUnoptimised(text)
		require.NoError(t, err)
		require.Equal(t, results(t, debug, in...), resultsOf(t, m, in...), tc.name)
		if tc.want == once || tc.want == -once {
			require.Zero(t, math.Float64frombits(results(t, debug, in...)[0]), "%s, for debugging", tc.name)
		}
	}
	call := entry(load + product + "call f; sub.f64 %g4, %g3, %g5; st.f64 [%rd2], %g4;")
	call = strings.Replace(call, ".visible .entry", ".func f() { ret; }\n.visible .entry", 1)
	require.Zero(t, math.Float64frombits(results(t, call, math.Float64bits(x), math.Float64bits(y))[0]), "behind a call")

	single := entry(load + "cvt.rn.f32.f64 %h1, %g1; mul.f32 %h3, %h1, %h1; sub.f32 %h4, %h3, 0f3F800000; cvt.f64.f32 %g4, %h4; st.f64 [%rd2], %g4;")
	in := math.Float64bits(1 + 0x1p-12)
	require.Equal(t, 0x1p-11+0x1p-24, math.Float64frombits(results(t, single, in, 0)[0]))
	saturated := strings.NewReplacer("mul.f32 %h3, %h1, %h1; sub.f32 %h4, %h3,", "mul.f32 %h3, %h1, %h1; sub.sat.f32 %h4, %h3,").Replace(single)
	require.NotEqual(t, single, saturated)
	require.Equal(t, 0x1p-11+0x1p-24, math.Float64frombits(results(t, saturated, in, 0)[0]))
	require.Zero(t, math.Float64frombits(results(t, strings.Replace(saturated, "sub.sat.f32 %h4, %h3, 0f3F800000", "sub.sat.f32 %h4, 0f3F800000, %h3", 1), in, 0)[0]))
}

// So are those of halves, each of a pair by itself.
func TestContractHalves(t *testing.T) {
	for _, tc := range []struct {
		typ              string
		x, one, sum, dif uint64 // x² - 1 and 1 - x², rounded once
	}{
		{"f16", 0x3c03, 0x3c00, 0x1e02, 0x9e02},  // (1 + 3·2⁻¹⁰)² - 1
		{"bf16", 0x3f83, 0x3f80, 0x3d42, 0xbd42}, // (1 + 3·2⁻⁷)² - 1
	} {
		for _, ends := range []string{"", "x2"} {
			join := uint64(1)
			if ends != "" {
				join = 0x10001
			}
			text := entry(start + strings.NewReplacer("TYPE", tc.typ+ends, "ONE", fmt.Sprint(tc.one*join)).Replace(`.reg .bBITS %h<8>;
ld.bBITS %h1, [%rd1]; mov.bBITS %h2, ONE;
mul.TYPE %h3, %h1, %h1; sub.TYPE %h4, %h3, %h2; st.bBITS [%rd2], %h4;
mul.TYPE %h5, %h1, %h1; sub.TYPE %h6, %h2, %h5; st.bBITS [%rd2+4], %h6;`))
			text = strings.ReplaceAll(text, "bBITS", map[bool]string{true: "b32", false: "b16"}[ends != ""])
			require.Equal(t, tc.dif*join<<32|tc.sum*join, results(t, text, tc.x*join)[0], tc.typ+ends)
			rounded := strings.ReplaceAll(text, "mul.", "mul.rn.")
			require.NotEqual(t, tc.sum*join, results(t, rounded, tc.x*join)[0]&0xffffffff, tc.typ+ends)
		}
	}
}

// A difference that does not borrow sets the carry: an addc counts it.
func TestBorrowIsNoCarry(t *testing.T) {
	text := entry(start + `ld.v2.u32 {%r1, %r2}, [%rd1];
sub.cc.u32 %r3, %r1, %r2; addc.u32 %r4, 0, 0; st.v2.u32 [%rd2], {%r3, %r4};
sub.cc.u32 %r3, %r1, %r2; subc.u32 %r4, 7, 0; st.u32 [%rd2+8], %r4;`)
	for _, tc := range []struct{ a, b, difference, counted, left uint64 }{
		{5, 3, 2, 1, 7}, {3, 3, 0, 1, 7}, {3, 5, 0xfffffffe, 0, 6},
	} {
		got := results(t, text, tc.b<<32|tc.a)
		require.Equal(t, []uint64{tc.counted<<32 | tc.difference, tc.left}, []uint64{got[0], got[1] & 0xffffffff}, tc)
	}
}

// Words of nvcc for the machine: the size of a warp, and the shared memory that is
// the system's, behind the kernel's own.
func TestMachineWords(t *testing.T) {
	text := entry(start + `.shared .align 8 .b8 mine[40];
mov.u32 %r1, WARP_SZ; mov.u32 %r2, %reserved_smem_offset_1; mov.u32 %r3, %total_smem_size; mov.u32 %r4, mine;
st.shared.u32 [%r4+36], 1; st.shared.u32 [%r2], 5; st.shared.u32 [%r2+1020], 6; ld.shared.u32 %r5, [%r4+36];
st.v2.u32 [%rd2], {%r1, %r2}; st.v2.u32 [%rd2+8], {%r3, %r5};`)
	require.Equal(t, []uint64{48<<32 | 32, 1<<32 | 40}, results(t, text, 0)[:2])
	require.Equal(t, IllegalAddress, dies(t, strings.Replace(text, "[%r2+1020]", "[%r2+1024]", 1), 1, params(uint64(base), uint64(base+64)), 0).Kind)
	require.Equal(t, IllegalAddress, dies(t, strings.Replace(text, "%reserved_smem_offset_1", "48", 1), 1, params(uint64(base), uint64(base+64)), 0).Kind, "nobody asks for it")
}

// Small floats are added as they are, zeros included.
func TestAddHalves(t *testing.T) {
	for name, l := range map[string]*floatFormat{"f16": half, "bf16": brain} {
		for v := range uint64(1 << 16) {
			if !l.isNaN(v) {
				require.Equal(t, v, l.add(v, 0x8000, toEven), "%s %x", name, v) // minus zero
			}
		}
	}
}
