package ptx

import (
	"context"
	"fmt"
	"math/bits"
	"testing"

	"github.com/stretchr/testify/require"
)

// warpResults runs a body for 64 threads, each of which leaves its word in %r4; its
// number is in %r1, its lane in %r5.
func warpResults(t *testing.T, body string) []uint32 {
	t.Helper()
	return shape(t, entry(own+"mov.u32 %r5, %laneid;\n"+body+"\nst.u32 [%rd2], %r4;"), 1, 64, 0, 64)
}

// Threads of a warp get what the others have.
func TestWarps(t *testing.T) {
	for _, tc := range []struct {
		body string
		want func(i uint32) uint32 // of the thread's number
	}{
		{"shfl.sync.idx.b32 %r4|%p1, %r1, 3, 31, -1;", func(i uint32) uint32 { return i&^31 + 3 }},
		{"shfl.sync.idx.b32 %r4, %r1, 2, 0x181f, -1;", func(i uint32) uint32 { return i&^7 + 2 }},
		{"shfl.sync.up.b32 %r4, %r1, 3, 0, -1;", func(i uint32) uint32 { return i - 3*uint32(boolBits(i&31 >= 3)) }},
		{"shfl.sync.down.b32 %r4|%p1, %r1, 5, 31, -1; @!%p1 mov.u32 %r4, 99;", func(i uint32) uint32 {
			if i&31 > 26 {
				return 99
			}
			return i + 5
		}},
		{"shfl.sync.down.b32 %r4, %r1, 1, 0x101f, -1;", func(i uint32) uint32 { return i + uint32(boolBits(i&15 != 15)) }},
		{"shfl.sync.bfly.b32 %r4, %r1, 13, 31, -1;", func(i uint32) uint32 { return i ^ 13 }},
		{"and.b32 %r6, %r1, 4; setp.ne.u32 %p1, %r6, 0; vote.sync.ballot.b32 %r4, %p1, -1;", func(uint32) uint32 { return 0xf0f0f0f0 }},
		{"setp.lt.u32 %p1, %r1, 32; vote.sync.all.pred %p2, %p1, -1; selp.u32 %r4, 1, 2, %p2;", func(i uint32) uint32 { return 1 + i/32 }},
		{"setp.eq.u32 %p1, %r1, 32; vote.sync.any.pred %p2, !%p1, -1; selp.u32 %r4, 1, 2, %p2;", func(uint32) uint32 { return 1 }},
		{"setp.eq.u32 %p1, %r1, 32; vote.sync.uni.pred %p2, %p1, -1; selp.u32 %r4, 1, 2, %p2;", func(i uint32) uint32 { return 1 + i/32 }},
		{"and.b32 %r6, %r1, 3; match.any.sync.b32 %r4, %r6, -1;", func(i uint32) uint32 { return 0x11111111 << (i & 3) }},
		{"shr.u32 %r6, %r1, 5; match.all.sync.b32 %r4|%p1, %r6, -1; @!%p1 mov.u32 %r4, 0;", func(uint32) uint32 { return 0xffffffff }},
		{"match.all.sync.b32 %r4|%p1, %r1, -1; @%p1 mov.u32 %r4, 7;", func(uint32) uint32 { return 0 }},
		{"redux.sync.add.s32 %r4, %r5, -1;", func(uint32) uint32 { return 31 * 16 }},
		{"sub.s32 %r6, %r5, 16; redux.sync.min.s32 %r4, %r6, -1;", func(uint32) uint32 { return ^uint32(15) }},
		{"elect.sync %r4|%p1, -1; @%p1 mov.u32 %r4, 5;", func(i uint32) uint32 { return 5 * uint32(boolBits(i&31 == 0)) }},
		// Those that diverge converge among themselves.
		{"and.b32 %r6, %r1, 1; setp.eq.u32 %p1, %r6, 0; @%p1 bra even;\nredux.sync.max.u32 %r4, %r5, 0xaaaaaaaa; bra over;\neven: redux.sync.max.u32 %r4, %r5, 0x55555555;\nover: bar.warp.sync -1;",
			func(i uint32) uint32 { return 30 + i&1 }},
		{"and.b32 %r6, %r1, 7; setp.ge.u32 %p1, %r6, 3; mov.u32 %r4, 0; @%p1 bra over;\nactivemask.b32 %r4;\nover:",
			func(i uint32) uint32 { return 0x07070707 * uint32(boolBits(i&7 < 3)) }},
		// Threads that have ended are not waited for.
		{"setp.gt.u32 %p1, %r5, 20; @%p1 ret; vote.sync.ballot.b32 %r4, 1, -1;", func(i uint32) uint32 { return 0x1fffff * uint32(boolBits(i&31 <= 20)) }},
		// Each votes by its own instruction.
		{"and.b32 %r6, %r1, 1; setp.eq.u32 %p1, %r6, 0; setp.eq.u32 %p2, 0, 0; @%p1 bra even;\nvote.sync.ballot.b32 %r4, %p2, -1; bra over;\neven: vote.sync.ballot.b32 %r4, !%p2, -1;\nover:",
			func(uint32) uint32 { return 0xaaaaaaaa }},
		// As many turns as a number needs, and then together.
		{"mov.u32 %r4, 0; more: add.u32 %r4, %r4, 1; setp.le.u32 %p1, %r4, %r5; @%p1 bra more; shfl.sync.idx.b32 %r4, %r4, 31, 31, -1;", func(uint32) uint32 { return 32 }},
		// Barriers that count.
		{"and.b32 %r6, %r1, 3; setp.eq.u32 %p1, %r6, 0; bar.red.popc.u32 %r4, 0, %p1;", func(uint32) uint32 { return 16 }},
		{"setp.lt.u32 %p1, %r1, 63; barrier.cta.red.and.pred %p2, 1, 64, %p1; selp.u32 %r4, 1, 2, %p2;", func(uint32) uint32 { return 2 }},
		{"setp.lt.u32 %p1, %r1, 63; bar.red.or.pred %p2, 1, !%p1; selp.u32 %r4, 1, 2, %p2;", func(uint32) uint32 { return 1 }},
	} {
		for i, v := range warpResults(t, tc.body) {
			require.Equal(t, tc.want(uint32(i)), v, "%s: thread %d", tc.body, i)
		}
	}
	require.Equal(t, 32, bits.OnesCount32(warpResults(t, "activemask.b32 %r4;")[0]))
}

// One half of a block makes what the other one takes, by barriers that the one
// waits at and the other does not.
func TestBarrierArrive(t *testing.T) {
	got := warpResults(t, `.shared .align 4 .b8 slot[128]; .reg .b32 %k;
mov.u32 %k, 0; mov.u32 %r4, 0; shl.b32 %r6, %r5, 2; mov.u32 %r7, slot; add.u32 %r7, %r7, %r6;
setp.ge.u32 %p1, %r1, 32; @%p1 bra take;
make: bar.sync 1, 64; mad.lo.u32 %r8, %k, 100, %r1; st.shared.u32 [%r7], %r8; bar.arrive 2, 64;
add.u32 %k, %k, 1; setp.lt.u32 %p2, %k, 5; @%p2 bra make; bra over;
take: bar.arrive 1, 64; bar.sync 2, 64; ld.shared.u32 %r8, [%r7]; add.u32 %r4, %r4, %r8;
add.u32 %k, %k, 1; setp.lt.u32 %p2, %k, 5; @%p2 bra take;
over:`)
	for i, v := range got[32:] {
		require.EqualValues(t, 1000+5*i, v)
	}
}

// A grid that is cooperative waits for all its blocks, more than fit otherwise.
func TestCooperative(t *testing.T) {
	text := entry(own + `
mov.b32 %r4, %envreg1; mov.b32 %r5, %envreg2; mov.b64 %rd4, {%r5, %r4};
ld.u32 %r6, [%rd4]; 
bar.sync 0;
setp.ne.u32 %p1, %r3, 0; @%p1 bra there;
mov.u32 %r7, %nctaid.x;
atom.global.add.u32 %r8, [%rd4+4], 1;
wait: ld.volatile.global.u32 %r8, [%rd4+4]; setp.lt.u32 %p2, %r8, %r7; @%p2 bra wait;
there: bar.sync 0;
ld.global.u32 %r8, [%rd4+4]; st.u32 [%rd2], %r8;`)
	const blocks, threads = 200, 32
	memory := make([]byte, 64+4*blocks*threads)
	l := Launch{
		Grid: [3]uint32{blocks, 1, 1}, Block: [3]uint32{threads, 1, 1}, Cooperative: true,
		Params: params(uint64(base), uint64(base+64)), Memory: host{base, memory},
	}
	require.NoError(t, parsed(t, text).Run(context.Background(), "k", l))
	for i := range blocks * threads {
		require.EqualValues(t, blocks, memory[64+4*i], i)
	}
	l.Cooperative = false
	var fault *Fault
	require.ErrorAs(t, parsed(t, text).Run(context.Background(), "k", l), &fault)
	require.Equal(t, IllegalAddress, fault.Kind, "there is no barrier: %s", fmt.Sprint(fault))
}

// A warp may come to a barrier as often as the barrier has room for.
func TestBarrierArriveOften(t *testing.T) {
	for i, v := range warpResults(t, `mov.u32 %r4, 0; setp.ge.u32 %p1, %r1, 32; @%p1 bra take;
more: bar.arrive 1, 1024; add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, 31; @%p2 bra more; bra over;
take: bar.sync 1, 1024; mov.u32 %r4, 31;
over:`) {
		require.EqualValues(t, 31, v, i)
	}
}

// Threads that have come to a barrier and then ended do not count twice, whether it is
// for some or for all.
func TestBarrierArriveAndEnd(t *testing.T) {
	for _, sync := range []string{"bar.sync 1, 96", "bar.sync 1"} {
		got := shape(t, entry(own+`.shared .align 4 .b8 slot[4];
mov.u32 %r4, 0; setp.lt.u32 %p1, %r1, 32; setp.ge.u32 %p2, %r1, 64;
@%p1 bar.arrive 1, 96; @%p1 exit;
@!%p2 bra wait;
more: add.u32 %r4, %r4, 1; setp.lt.u32 %p3, %r4, 5000; @%p3 bra more;
st.shared.u32 [slot], 7;
wait: `+sync+`; ld.shared.u32 %r4, [slot]; st.u32 [%rd2], %r4;`), 1, 96, 0, 96)
		for i, v := range got[32:] {
			require.EqualValues(t, 7, v, "%s: thread %d", sync, 32+i)
		}
	}
}
