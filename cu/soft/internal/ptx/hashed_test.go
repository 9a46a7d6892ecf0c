package ptx

import (
	"encoding/binary"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every form gives the bits that it gives on an H200, and what that refuses is
// refused when it is loaded. Approximate forms are within their tolerance.
func TestHashes(t *testing.T) {
	for k, f := range hashForms() {
		if testing.Short() && k%4 > 0 {
			continue
		}
		f.check(t)
	}
}

// check compares what a form gives here with what was recorded.
func (f hashForm) check(t *testing.T) {
	want := f.gpu
	m, err := Parse(hashHeader + f.kernel(0))
	switch {
	case want == "":
		t.Errorf("%s: not recorded: TestRecord", f.name)
	case want == "refused":
		if err == nil {
			t.Errorf("%s: is not refused", f.name)
		}
	case err != nil:
		t.Errorf("%s: %v", f.name, err)
	case f.approx:
		f.checkNear(t, f.soft(t, m, 0), strings.Fields(want))
	case hashOf(f.soft(t, m, 0)) != want:
		t.Errorf("%s: other bits than an H200's", f.name)
	}
}

// A tolerance is how far an approximate result may be from an H200's: by so many
// units in the last place, or by an absolute difference.
type tolerance struct {
	ulps     uint64
	absolute float64
}

// tolerances are those of the forms, by the beginnings of their names; the first that
// fits counts. docs/ptx.md has the same.
var tolerances = []struct {
	form string
	tolerance
}{
	{"sin.approx", tolerance{0, 0x1p-21}},
	{"cos.approx", tolerance{0, 0x1p-21}},
	{"lg2.approx", tolerance{7, 0x1p-22}},
	{"ex2.approx.f32", tolerance{3, 0}},
	{"ex2.approx.ftz.f32", tolerance{3, 0}},
	{"ex2.approx", tolerance{1, 0}},
	{"tanh.approx.f32", tolerance{127, 0}},
	{"tanh.approx", tolerance{1, 0}},
	{"rcp.approx.ftz.f64", tolerance{1 << 32, 0}},
	{"rsqrt.approx.ftz.f64", tolerance{1 << 32, 0}},
	{"rcp.approx", tolerance{1, 0}},
	{"rsqrt.approx", tolerance{1, 0}},
	{"sqrt.approx", tolerance{1, 0}},
	{"div.approx", tolerance{1, 0}},
	{"div.full", tolerance{1, 0}},
}

func (f hashForm) tolerance() (tolerance, bool) {
	for _, t := range tolerances {
		if strings.HasPrefix(f.name, "~"+t.form) {
			return t.tolerance, true
		}
	}
	return tolerance{}, false
}

// near reports whether two results are close enough.
func (l tolerance) near(t string, a, b uint64) bool {
	if ulps(t, a, b) <= l.ulps {
		return true
	}
	return t == "f32" && math.Abs(float64(f32(a))-float64(f32(b))) <= l.absolute
}

// checkNear compares approximate results with the first that were recorded.
func (f hashForm) checkNear(t *testing.T, results []byte, want []string) {
	require.Len(t, want, approxCases, f.name)
	l, ok := f.tolerance()
	require.True(t, ok, f.name)
	input := f.input()
	for n, w := range want {
		gpu, err := strconv.ParseUint(w, 16, 64)
		require.NoError(t, err)
		if got := binary.LittleEndian.Uint64(results[8*n:]); !l.near(f.types[0], gpu, got) {
			t.Errorf("%s of %x: %x, on an H200 %x", f.name, input[8*hashWords*n:8*hashWords*(n+1)], got, gpu)
		}
	}
}

// String is the tolerance as documents have it.
func (l tolerance) String() string {
	var parts []string
	switch {
	case l.ulps >= 1<<32:
		parts = append(parts, "2^32 ulp")
	case l.ulps > 0:
		parts = append(parts, strconv.FormatUint(l.ulps, 10)+" ulp")
	}
	if l.absolute > 0 {
		_, exp := math.Frexp(l.absolute)
		parts = append(parts, "2^"+strconv.Itoa(exp-1))
	}
	return strings.Join(parts, ", or ")
}
