package ptx

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// Hints about speed are read, and change nothing.
func TestHints(t *testing.T) {
	for _, line := range []string{
		"pmevent 1;", "pmevent.mask 0xff;", "griddepcontrol.wait;", "griddepcontrol.launch_dependents;",
		"setmaxnreg.inc.sync.aligned.u32 96;", "setmaxnreg.dec.sync.aligned.u32 24;",
		"discard.global.L2 [%rd1], 128;", "discard.L2 [%rd1+128], 128;", "applypriority.global.L2::evict_normal [%rd1], 128;",
		"prefetch.global.L2::evict_last [%rd1];", "prefetch.global.L2::evict_normal [%rd1];",
		"createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64 %rd5, 0.5;", "createpolicy.fractional.L2::evict_first.b64 %rd5;",
		"createpolicy.range.global.L2::evict_last.L2::evict_first.b64 %rd5, [%rd1], 0x100, 0x200;", "createpolicy.cvt.L2.b64 %rd5, %rd6;",
		"fence.mbarrier_init.release.cluster;", "mov.u64 %rd6, %current_graph_exec; add.u64 %rd4, %rd4, %rd6;", "mov.u32 %r1, %envreg0;",
	} {
		text := entry(start + "mov.u64 %rd6, 5; ld.u64 %rd4, [%rd1];\n" + line + "\nst.u64 [%rd2], %rd4;")
		require.EqualValues(t, 77, results(t, text, 77)[0], line)
	}
	for _, line := range []string{
		"griddepcontrol;", "pmevent %r1;", "setmaxnreg.sync.aligned.u32 8;", "setmaxnreg.inc.sync.u32 8;", "discard.global.L2 [%rd1], 64;",
		"applypriority.global.L2 [%rd1], 128;", "createpolicy.L2.b64 %rd1, 1.0;", "createpolicy.fractional.L2::evict_last.b32 %r1, 1.0;",
		"ld.L2::cache_hint.u32 %r1, [%rd1];", "ld.global.u32 %r1, [%rd1], %rd5;", "st.global.L2::cache_hint.u32 [%rd1], %r1, %r2;",
	} {
		_, err := Parse(entry(start + line))
		require.Error(t, err, line)
	}
}

// A policy stands behind the other operands.
func TestCacheHint(t *testing.T) {
	got := results(t, entry(start+`createpolicy.fractional.L2::evict_last.b64 %rd5, 1.0;
ld.global.nc.L1::no_allocate.L2::cache_hint.v2.u32 {%r1, %r2}, [%rd1], %rd5;
st.global.L2::cache_hint.u32 [%rd2], %r2, %rd5;
atom.global.add.L2::cache_hint.u32 %r3, [%rd2], %r1, %rd5;
red.global.add.L2::cache_hint.u32 [%rd2], 100, %rd5;
atom.global.cas.L2::cache_hint.b32 %r4, [%rd2+4], 0, 9, %rd5;`), 3<<32|4)
	require.EqualValues(t, 9<<32|107, got[0])
}

// bf16 becomes a byte as the same number of 32 bits does.
func TestBrainToByte(t *testing.T) {
	for _, to := range []string{"s8", "u8"} {
		for _, round := range []string{"rni", "rzi", "rmi", "rpi"} {
			text := fmt.Sprintf(`{.reg.b8 byte; .reg .b16 %%h, %%z; cvt.u16.u32 %%h, %%r1;
cvt.%s.%s.bf16 byte, %%h; mov.b16 %%rs1, {byte, 0}; cvt.u32.u16 %%r4, %%rs1;
mov.u16 %%z, 0; mov.b32 %%f1, {%%z, %%h}; cvt.%[1]s.%[2]s.f32 %%r5, %%f1; and.b32 %%r5, %%r5, 255; shl.b32 %%r5, %%r5, 16; or.b32 %%r4, %%r4, %%r5;}`, round, to)
			const step = 37 // each block has 64 numbers
			for first := 0; first < 1<<16; first += 64 * step {
				body := own + fmt.Sprintf("mad.lo.u32 %%r1, %%r1, %d, %d;\n", step, first) + text + "\nst.u32 [%rd2], %r4;"
				for i, v := range shape(t, entry(body), 1, 64, 0, 64) {
					require.Equal(t, v>>16, v&0xffff, "%s.%s of %#x", round, to, first+step*i)
				}
			}
		}
	}
	_, err := Parse(entry("cvt.rzi.s8.bf16 %rs1, %rs2;"))
	require.ErrorContains(t, err, "wider")
}
