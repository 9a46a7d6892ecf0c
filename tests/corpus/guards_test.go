package corpus

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// guarded are a kernel of instructions none of which is to run, which no compiler knows.
func guarded(name string, instructions []string) string {
	var b strings.Builder
	g := newGenerator(1)
	g.body, g.name = &b, name
	g.begin()
	g.say("ld.global.u32 %%t9, [%%in]; setp.eq.u32 %%q9, %%t9, 123456789;")
	for _, i := range instructions {
		g.say("@%%q9 %s", i)
	}
	g.end()
	return b.String()
}

// expanded is a pattern with several choices of what it leaves open.
func expanded(pattern string) (list []string) {
	for seed := range 6 {
		list = append(list, newGenerator(seed+1).expand(pattern))
	}
	return list
}

// leftOut are instructions of which the GPU's assembler makes others, without the guard.
var leftOut = regexp.MustCompile(`^(testp|vadd4|vabsdiff4)\.`)

// An instruction with a guard that is false does nothing, but for those of which the
// assembler leaves it out: these the software driver refuses.
func TestGuards(t *testing.T) {
	takes(t, randomVersion)
	r, err := newRandomRunner(cutest.Context(t, cutest.Device(t)), randomStack)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	var all []string
	without := map[string][]string{}
	for _, p := range append(patterns[:len(patterns):len(patterns)], loosePatterns...) {
		for _, text := range expanded(p) {
			if name, _, _ := strings.Cut(text, "."); leftOut.MatchString(text) {
				without[name] = append(without[name], text)
			} else if !strings.Contains(text, "\n") {
				all = append(all, text)
			}
		}
	}
	for _, n := range strings.Fields("vadd2 vsub2 vavrg2 vabsdiff2 vmin2 vmax2 vset2.lt vsub4 vavrg4 vmax4 vset4.lt") {
		all = append(all, n+".u32.u32"+map[bool]string{false: ".u32"}[strings.Contains(n, "set")]+" %r0, %r1, %r2, %r3;")
	}
	for _, level := range []uint32{optimised, asWritten} {
		want := r.leaves(t, level, nil)
		require.Equal(t, want, r.leaves(t, level, all), "level %d", level)
		for name, list := range without {
			if cutest.Kind() == cu.CUDA {
				assert.NotEqual(t, want, r.leaves(t, level, list), "%s heeds its guard", name)
				continue
			}
			_, err := r.c.LoadModule([]byte(randomHeader + guarded("k", list)))
			require.Error(t, err)
			require.ErrorContains(t, err, "with a guard", name)
		}
	}
}

// leaves is what a kernel of such instructions leaves.
func (r *randomRunner) leaves(t *testing.T, level uint32, instructions []string) []byte {
	t.Helper()
	text := fmt.Sprint(randomHeader, ".const .align 16 .u32 const_k0[16]; ", guarded("k0", instructions))
	m, err := r.c.LoadModule([]byte(text), cu.JITOptimization(level))
	require.NoError(t, err)
	out, err := r.run(m, 0)
	require.NoError(t, errors.Join(err, m.Close()))
	return out
}
