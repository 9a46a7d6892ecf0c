package corpus

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// guarded is a kernel of instructions none of which is to run, which no compiler knows.
func guarded(name string, instructions []string) string {
	var b strings.Builder
	g := newGenerator(1)
	g.body, g.name = &b, name
	g.begin()
	g.say("ld.global.u32 %%t9, [%%in]; setp.eq.u32 %%q9, %%t9, 123456789;")
	for _, i := range instructions {
		for part := range strings.SplitSeq(strings.TrimSuffix(i, ";"), ";") { // some patterns are several
			g.say("@%%q9 %s;", strings.TrimSpace(part))
		}
	}
	g.end()
	return b.String()
}

// forms are a pattern with each choice that it leaves, and some registers.
func forms(pattern string) (list []string) {
	before, rest, ok := strings.Cut(pattern, "<")
	if !ok {
		return []string{newGenerator(len(pattern)).expand(pattern)}
	}
	choices, after, _ := strings.Cut(rest, ">")
	for c := range strings.SplitSeq(choices, ",") {
		list = append(list, forms(before+c+after)...)
	}
	return list
}

// leftOut are the instructions of which the GPU's assembler makes others, without the
// guard.
var leftOut = []string{"testp", "vadd4"}

// An instruction with a guard that is false does nothing, but for those of which the
// assembler leaves it out: these the software driver refuses.
func TestGuards(t *testing.T) {
	takes(t, randomVersion)
	r := ok(newRandomRunner(cutest.Context(t, cutest.Device(t))))(t)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	var all []string
	without := map[string][]string{}
	for _, p := range slices.Concat(patterns, loosePatterns, looseSmall, []string{"<vadd2,vsub2,vavrg2,vabsdiff2,vmin2,vmax2,vsub4,vavrg4,vmax4>.u32.u32.u32 $R, $r, $r, $r;", "<vset2,vset4>.lt.u32.u32 $R, $r, $r, $r;"}) {
		for _, text := range forms(p) {
			if name, _, _ := strings.Cut(text, "."); slices.Contains(leftOut, name) {
				without[name] = append(without[name], text)
			} else {
				all = append(all, text)
			}
		}
	}
	require.Greater(t, len(all), 600)
	for _, level := range []uint32{optimised, asWritten} {
		want := r.leaves(t, level, nil)
		for some := range slices.Chunk(all, 200) {
			require.Equal(t, want, r.leaves(t, level, some), "level %d: %q", level, some)
		}
		for _, name := range leftOut {
			require.NotEmpty(t, without[name])
			if cutest.Kind() == cu.CUDA {
				assert.NotEqual(t, want, r.leaves(t, level, without[name]), "%s heeds its guard", name)
				continue
			}
			for _, text := range without[name] {
				require.ErrorContains(t, errOf(r.c.LoadModule([]byte(randomHeader+guarded("k", []string{text})))), "with a guard", text)
			}
		}
	}
}

// leaves is what a kernel of such instructions leaves.
func (r *randomRunner) leaves(t *testing.T, level uint32, instructions []string) []byte {
	t.Helper()
	text := fmt.Sprint(randomHeader, ".const .align 16 .u32 const_k0[16]; ", guarded("k0", instructions))
	m := ok(r.c.LoadModule([]byte(text), cu.JITOptimization(level)))(t)
	out, err := r.run(m, 0)
	require.NoError(t, errors.Join(err, m.Close()))
	return out
}
