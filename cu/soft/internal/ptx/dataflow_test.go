package ptx

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// tangled is a kernel of products, sums, copies and signs on few registers, with guards,
// branches and a loop, that leaves all of them. Its numbers are small and whole, so that
// nothing is rounded.
func tangled(r *rand.Rand) string {
	var b strings.Builder
	b.WriteString(start + ".reg .f64 %g<6>; .reg .pred %q<4>; ld.v2.f64 {%g0, %g1}, [%rd1]; ld.v2.f64 {%g2, %g3}, [%rd1+16];\n" +
		"neg.f64 %g4, %g0; mov.f64 %g5, %g1; mov.u32 %r1, 0;\n" +
		"setp.gt.f64 %q0, %g0, %g1; setp.eq.f64 %q1, %g2, %g3; setp.lt.f64 %q2, %g0, 0d0000000000000000; setp.ne.f64 %q3, %g1, %g3;\nagain:\n")
	g := func() string { return fmt.Sprintf("%%g%d", r.IntN(6)) }
	guard := func() string { return fmt.Sprintf("@%s%%q%d ", []string{"", "!"}[r.IntN(2)], r.IntN(4)) }
	open := 0
	for n := range 8 + r.IntN(10) {
		before := ""
		if r.IntN(6) == 0 {
			before = guard()
		}
		switch k := r.IntN(14); {
		case k < 4:
			fmt.Fprintf(&b, "%smul.f64 %s, %s, %s;\n", before, g(), g(), g())
		case k < 8:
			fmt.Fprintf(&b, "%s%s.f64 %s, %s, %s;\n", before, []string{"add", "sub"}[r.IntN(2)], g(), g(), g())
		case k < 10:
			fmt.Fprintf(&b, "%s%s.f64 %s, %s;\n", before, []string{"neg", "mov"}[r.IntN(2)], g(), g())
		case k == 10:
			fmt.Fprintf(&b, "selp.f64 %s, %s, %s, %%q%d;\n", g(), g(), g(), r.IntN(4))
		case k == 11 && open == 0:
			fmt.Fprintf(&b, "%sbra over%d;\n", guard(), n)
			open = n + 1
		case k == 12 && open > 0:
			fmt.Fprintf(&b, "over%d:\n", open-1)
			open = 0
		case k == 13:
			fmt.Fprintf(&b, "setp.gt.f64 %%q%d, %s, %s;\n", r.IntN(4), g(), g())
		}
	}
	if open > 0 {
		fmt.Fprintf(&b, "over%d:\n", open-1)
	}
	if r.IntN(3) == 0 {
		b.WriteString("add.u32 %r1, %r1, 1; setp.lt.u32 %q0, %r1, 2; @%q0 bra again;\n")
	}
	for n := range 6 {
		fmt.Fprintf(&b, "st.f64 [%%rd2+%d], %%g%d;\n", 8*n, n)
	}
	return entry(b.String())
}

// Contracted operations give the results of those written, where rounding does not show.
func TestContractedIsTheSame(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	kernels, contracted := 3000, 0
	if testing.Short() {
		kernels = 500
	}
	for range kernels {
		text := tangled(r)
		in := []uint64{math.Float64bits(float64(r.IntN(5) - 2)), math.Float64bits(float64(r.IntN(5) - 2)), math.Float64bits(3), math.Float64bits(float64(r.IntN(3) - 1))}
		plain, err := ParseUnoptimised(text)
		require.NoError(t, err, text)
		want := resultsOf(t, plain, in...)
		exact := true
		for _, v := range want {
			exact = exact && math.Abs(math.Float64frombits(v)) < 1<<50
		}
		if !exact {
			continue
		}
		m := parsed(t, text)
		require.Equal(t, want, resultsOf(t, m, in...), text)
		if m.functions["k"].slots != plain.functions["k"].slots {
			contracted++ // with operands that are kept
		}
	}
	require.Greater(t, contracted, kernels/30)
}
