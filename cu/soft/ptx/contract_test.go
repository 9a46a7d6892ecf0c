package ptx

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A product and a sum that say nothing of rounding are rounded once, where the
// assembler is sure to make one instruction of them.
func TestContract(t *testing.T) {
	x, y := 1+0x1p-30, 1-0x1p-30 // the product is 1 - 2⁻⁶⁰
	const load = start + ".reg .f64 %g<5>; .reg .f32 %h<5>; ld.v2.f64 {%g1, %g2}, [%rd1];\n"
	for _, tc := range []struct {
		name, body string
		want       float64
	}{
		{"sum", "mul.f64 %g3, %g1, %g2; add.f64 %g4, %g3, 0dBFF0000000000000;", -0x1p-60},
		{"sum of another", "mul.f64 %g3, %g1, %g2; add.f64 %g4, 0dBFF0000000000000, %g3;", -0x1p-60},
		{"difference", "mul.f64 %g3, %g1, %g2; sub.f64 %g4, %g3, 0d3FF0000000000000;", -0x1p-60},
		{"difference from another", "mul.f64 %g3, %g1, %g2; sub.f64 %g4, 0d3FF0000000000000, %g3;", 0x1p-60},
		{"the first of two", "mul.f64 %g3, %g1, %g2; mul.f64 %g0, %g1, 0d3FF0000000000000; sub.f64 %g4, %g3, %g0;", -0x1p-30 - 0x1p-60},
		{"rounded product", "mul.rn.f64 %g3, %g1, %g2; add.f64 %g4, %g3, 0dBFF0000000000000;", 0},
		{"rounded sum", "mul.f64 %g3, %g1, %g2; add.rn.f64 %g4, %g3, 0dBFF0000000000000;", 0},
		{"behind a label", "mul.f64 %g3, %g1, %g2; there: add.f64 %g4, %g3, 0dBFF0000000000000;", 0},
		{"used more than once", "mul.f64 %g3, %g1, %g2; add.f64 %g4, %g3, 0dBFF0000000000000; mov.f64 %g0, %g3;", 0},
		{"written more than once", "mov.f64 %g3, %g2; mul.f64 %g3, %g1, %g2; add.f64 %g4, %g3, 0dBFF0000000000000;", 0},
		{"operand changed", "mul.f64 %g3, %g1, %g2; mov.f64 %g1, %g2; add.f64 %g4, %g3, 0dBFF0000000000000;", 0},
	} {
		text := entry(load + tc.body + "\nst.f64 [%rd2], %g4;")
		in := []uint64{math.Float64bits(x), math.Float64bits(y)}
		require.Equal(t, tc.want, math.Float64frombits(results(t, text, in...)[0]), tc.name)
		debug := strings.Replace(text, ".target sm_75", ".target sm_75, debug", 1)
		require.NotEqual(t, text, debug)
		if tc.want == 0 || tc.name == "the first of two" {
			continue
		}
		require.Zero(t, math.Float64frombits(results(t, debug, in...)[0]), "%s, for debugging", tc.name)
	}
	single := entry(load + "cvt.rn.f32.f64 %h1, %g1; mul.f32 %h3, %h1, %h1; sub.f32 %h4, %h3, 0f3F800000; cvt.f64.f32 %g4, %h4; st.f64 [%rd2], %g4;")
	require.Equal(t, 0x1p-11+0x1p-24, math.Float64frombits(results(t, single, math.Float64bits(1+0x1p-12), 0)[0]))
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

// Where a difference does not borrow, the carry is set: an addc counts it.
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

// What nvcc writes of the machine: the size of a warp, and the shared memory that is
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
	for name, h := range halfTypes {
		if h.size != 2 {
			continue
		}
		for v := range uint64(1 << 16) {
			if !h.layout.isNaN(v) {
				require.Equal(t, v, h.add(v, 0x8000, 0), "%s %x", name, v) // minus zero
			}
		}
	}
}
