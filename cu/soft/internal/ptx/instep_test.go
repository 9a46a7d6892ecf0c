package ptx

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// stepping is how a test begins whose warps keep in step: %r4 is 0, %r5 the lane, and
// %r6 the address of its word in shared memory.
const stepping = own + `.shared .align 4 .b8 words[512]; .reg .b32 %k; .reg .pred %q;
mov.u32 %r4, 0; mov.u32 %r5, %laneid; mov.u32 %k, 0;
shl.b32 %r6, %r1, 2; mov.u32 %r7, words; add.u32 %r6, %r6, %r7;
st.volatile.shared.u32 [%r6], %r1; bar.sync 0;
`

// stepped runs a body for 64 threads on an architecture, as warpResults does.
func stepped(t *testing.T, arch, body string) []uint32 {
	t.Helper()
	text := entry(stepping + body + "\nst.u32 [%rd2], %r4;")
	return shape(t, strings.Replace(text, "sm_75", arch, 1), 1, 64, 0, 64)
}

// Code may count on the threads of a warp keeping in step, that for old devices also where
// they vote and shuffle.
func TestLockstep(t *testing.T) {
	for _, tc := range []struct {
		say, body string
		want      func(i uint32) uint32
	}{
		{"a tree of sums without barriers", `setp.ge.u32 %p1, %r1, 32; @%p1 bra over;
ld.volatile.shared.u32 %r7, [%r6+128]; ld.volatile.shared.u32 %r8, [%r6]; add.u32 %r8, %r8, %r7; st.volatile.shared.u32 [%r6], %r8;
ld.volatile.shared.u32 %r7, [%r6+64]; add.u32 %r8, %r8, %r7; st.volatile.shared.u32 [%r6], %r8;
ld.volatile.shared.u32 %r7, [%r6+32]; add.u32 %r8, %r8, %r7; st.volatile.shared.u32 [%r6], %r8;
ld.volatile.shared.u32 %r7, [%r6+16]; add.u32 %r8, %r8, %r7; st.volatile.shared.u32 [%r6], %r8;
ld.volatile.shared.u32 %r7, [%r6+8]; add.u32 %r8, %r8, %r7; st.volatile.shared.u32 [%r6], %r8;
ld.volatile.shared.u32 %r7, [%r6+4]; add.u32 %r8, %r8, %r7; st.volatile.shared.u32 [%r6], %r8;
over: bar.sync 0; ld.shared.u32 %r4, [words];`, func(uint32) uint32 { return 63 * 32 }},
		{"the same in a loop, of those who have the lower half", `mov.u32 %k, 16;
more: setp.ge.u32 %p1, %r5, %k; @%p1 bra done;
mad.lo.u32 %r7, %k, 4, %r6; ld.volatile.shared.u32 %r8, [%r7]; ld.volatile.shared.u32 %r7, [%r6]; add.u32 %r8, %r8, %r7; st.volatile.shared.u32 [%r6], %r8;
done: shr.u32 %k, %k, 1; setp.ne.u32 %p1, %k, 0; @%p1 bra more;
sub.u32 %r7, %r1, %r5; shl.b32 %r7, %r7, 2; mov.u32 %r8, words; add.u32 %r7, %r7, %r8; ld.volatile.shared.u32 %r4, [%r7];`,
			func(i uint32) uint32 { return 16*31 + i/32*32*32 }},
		// The thread that wrote last sees it, and the others try again.
		{"a counter that all increase", `and.b32 %r7, %r1, 32; mov.u32 %r8, words; mad.lo.u32 %r7, %r7, 4, %r8; st.volatile.shared.u32 [%r7], 0; shl.b32 %k, %r5, 27;
again: ld.volatile.shared.u32 %r8, [%r7]; and.b32 %r8, %r8, 0x7ffffff; add.u32 %r8, %r8, 1; or.b32 %r8, %r8, %k;
st.volatile.shared.u32 [%r7], %r8; ld.volatile.shared.u32 %r2, [%r7]; setp.ne.u32 %p1, %r2, %r8; @%p1 bra again;
ld.volatile.shared.u32 %r4, [%r7]; and.b32 %r4, %r4, 0x7ffffff;`, func(uint32) uint32 { return 32 }},
		// One stays behind in each turn, and the others do not begin the next without it.
		{"a loop with a part for one", `mov.u32 %r8, words;
more: ld.volatile.shared.u32 %r7, [words+4]; add.u32 %r4, %r4, %r7;
setp.ne.u32 %p1, %r1, %k; @%p1 bra skip;
ld.volatile.shared.u32 %r7, [words+4]; add.u32 %r7, %r7, 1; st.volatile.shared.u32 [words+4], %r7;
skip: add.u32 %k, %k, 1; setp.lt.u32 %p1, %k, 32; @%p1 bra more;
setp.ge.u32 %p1, %r1, 32; @%p1 mov.u32 %r4, 528;`, func(uint32) uint32 { return 32 + 31*32/2 }},
		// The block that runs first stands behind.
		{"a way that some take first", `setp.lt.u32 %p1, %r5, 16; @%p1 bra low;
both: ld.volatile.shared.u32 %r4, [words]; bra over;
low: st.volatile.shared.u32 [words], 76; st.volatile.shared.u32 [words], 77; bra both;
over:`, func(uint32) uint32 { return 77 }},
		{"a loop within a loop, of as many turns as a lane's number", `.reg .b32 %n; bra begin;
rest: ld.volatile.shared.u32 %r7, [%r6+4]; st.volatile.shared.u32 [%r6], %r7; add.u32 %r4, %r4, %r7;
add.u32 %k, %k, 1; setp.lt.u32 %p1, %k, 3; @!%p1 bra over;
begin: mov.u32 %n, %r5;
inner: setp.eq.u32 %p2, %n, 0; @%p2 bra rest;
st.volatile.shared.u32 [words+300], %n; sub.u32 %n, %n, 1; bra inner;
over: setp.ge.u32 %p1, %r5, 28; @%p1 mov.u32 %r4, 0;`, func(i uint32) uint32 {
			if i%32 >= 28 {
				return 0
			}
			return 3*i + 6
		}},
		{"a vote of all after their ways have parted", `setp.gt.u32 %p1, %r5, 9; @%p1 bra high;
more: st.volatile.shared.u32 [words], %r4; add.u32 %k, %k, 1; setp.lt.u32 %p2, %k, 20; @%p2 bra more; bra both;
high: st.volatile.shared.u32 [words], %r4;
both: setp.eq.u32 %p2, 0, 0; vote.ballot.b32 %r4, %p2;`, func(uint32) uint32 { return 0xffffffff }},
		{"a shuffle of all after a loop", `more: shfl.up.b32 %r7, %r5, 1, 0; add.u32 %k, %k, 1; setp.le.u32 %p1, %k, %r5; @%p1 bra more;
shfl.idx.b32 %r4, %k, 31, 31;`, func(uint32) uint32 { return 32 }},
	} {
		for _, arch := range []string{"sm_52", "sm_90"} {
			if strings.Contains(tc.say, "of all after") && arch != "sm_52" {
				continue
			}
			for i, v := range stepped(t, arch, tc.body) {
				require.Equal(t, tc.want(uint32(i)), v, "%s: %s: thread %d", arch, tc.say, i)
			}
		}
	}
}

// Threads diverge and converge again where functions are called, too.
func TestLockstepInCalls(t *testing.T) {
	add := `.func add(.param .b32 at, .param .b32 from) { .reg .b32 %r<9>; ld.param.u32 %r1, [at]; ld.param.u32 %r2, [from];
ld.volatile.shared.u32 %r3, [%r2]; ld.volatile.shared.u32 %r4, [%r1]; add.u32 %r4, %r4, %r3; st.volatile.shared.u32 [%r1], %r4; ret; }
`
	body := `mov.u32 %k, 16;
more: setp.ge.u32 %p1, %r5, %k; @%p1 bra done;
mad.lo.u32 %r7, %k, 4, %r6;
{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r6; st.param.b32 [b], %r7; call add, (a, b); }
done: shr.u32 %k, %k, 1; setp.ne.u32 %p1, %k, 0; @%p1 bra more;
bar.sync 0; ld.shared.u32 %r4, [words];
st.u32 [%rd2], %r4;`
	text := strings.Replace(entry(stepping+body), ".visible", add+".visible", 1)
	for i, v := range shape(t, strings.Replace(text, "sm_75", "sm_60", 1), 1, 64, 0, 64) {
		require.EqualValues(t, 31*16, v, i)
	}
}

// Threads that wait for others of their warp, which hangs on an old GPU, go on after a
// while, which is shorter on newer ones.
func TestLockstepIsNotForEver(t *testing.T) {
	for _, wait := range []string{
		`setp.eq.u32 %p1, %r5, 7; @%p1 bra over;
wait: ld.volatile.shared.u32 %r7, [words+400]; setp.ne.u32 %p2, %r7, 99; @%p2 bra wait;
over: st.volatile.shared.u32 [words+400], 99; mov.u32 %r4, 5;`,
		// Each waits for the one before it, three times.
		`st.volatile.shared.u32 [%r6], 0; setp.gt.u32 %p1, %r1, 3; @%p1 bra over;
more: add.u32 %k, %k, 1; setp.eq.u32 %p1, %r1, 0; @%p1 bra mine;
wait: ld.volatile.shared.u32 %r7, [%r6+-4]; setp.lt.u32 %p2, %r7, %k; @%p2 bra wait;
mine: st.volatile.shared.u32 [%r6], %k; setp.lt.u32 %p1, %k, 3; @%p1 bra more;
over: mov.u32 %r4, 5;`,
	} {
		for _, arch := range []string{"sm_52", "sm_75"} {
			for i, v := range stepped(t, arch, wait) {
				require.EqualValues(t, 5, v, "%s: thread %d", arch, i)
			}
		}
	}
}

// Only what needs it is kept in step.
func TestLockstepWhereNeeded(t *testing.T) {
	for body, archs := range map[string][]string{
		"ld.volatile.global.u32 %r1, [%rd1];":    {"sm_52", "sm_62", "sm_70", "sm_90a"},
		"shfl.idx.b32 %r1, %r2, 0, 31;":          {"sm_52", "sm_62"},
		"activemask.b32 %r1;":                    {"sm_52", "sm_62"},
		"shfl.sync.idx.b32 %r1, %r2, 0, 31, -1;": {},
		"vote.sync.ballot.b32 %r1, %p1, -1;":     {},
		"ld.relaxed.sys.global.u32 %r1, [%rd1];": {},
	} {
		for _, arch := range []string{"sm_52", "sm_62", "sm_70", "sm_90a"} {
			m := parsed(t, strings.Replace(entry(body), "sm_75", arch, 1))
			require.Equal(t, slices.Contains(archs, arch), m.functions["k"].places != nil, "%s: %s", arch, body)
		}
	}
}

// An access that a thread may not make ends the kernel, by the line.
func TestLockstepFault(t *testing.T) {
	text := strings.Replace(entry(stepping+"st.volatile.shared.u32 [%r6+512], 1;"), "sm_75", "sm_52", 1)
	var fault *Fault
	err := parsed(t, text).Run(context.Background(), "k", Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{64, 1, 1},
		Params: params(uint64(base), uint64(base)), Memory: host{base, make([]byte, 1024)}})
	require.ErrorAs(t, err, &fault)
	require.Equal(t, IllegalAddress, fault.Kind)
}
