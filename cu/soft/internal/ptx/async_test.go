package ptx

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// cp.async copies to shared memory, and writes zeros where there is less to copy.
func TestCopyToShared(t *testing.T) {
	const show = "cp.async.commit_group; cp.async.wait_group 0; cp.async.wait_all; ld.shared.v2.u64 {%rd5, %rd6}, [%r1]; st.v2.u64 [%rd2], {%rd5, %rd6};"
	const begin = start + ".shared .align 16 .b8 room[16]; mov.u32 %r1, room; mov.u64 %rd5, -1; st.shared.v2.u64 [%r1], {%rd5, %rd5};\n"
	const a, b = 0x1111111122222222, 0x3333333344444444
	for _, tc := range []struct {
		text string
		want []uint64
	}{
		{"cp.async.cg.shared.global [%r1], [%rd1], 16;", []uint64{a, b}},
		{"cp.async.ca.shared::cta.global.L2::128B [%r1+8], [%rd1], 8;", []uint64{math.MaxUint64, a}},
		{"cp.async.ca.shared.global [room+4], [%rd1+4], 4;", []uint64{a&^0xffffffff | 0xffffffff, math.MaxUint64}},
		{"cp.async.ca.shared.global [%r1], [%rd1], 16, 4;", []uint64{a & 0xffffffff, 0}},
		{"mov.u32 %r2, 100; cp.async.ca.shared.global [%r1], [%rd1], 16, %r2;", []uint64{a, b}},
		{"setp.eq.u32 %p1, 1, 1; cp.async.ca.shared.global [%r1], [%rd1], 8, %p1;", []uint64{0, math.MaxUint64}},
		{"setp.eq.u32 %p1, 1, 0; cp.async.ca.shared.global [%r1], [%rd1], 8, %p1;", []uint64{a, math.MaxUint64}},
		{"cp.async.ca.shared.global [%r1], [0], 8, 0;", []uint64{0, math.MaxUint64}}, // nothing is read
	} {
		require.Equal(t, tc.want, results(t, entry(begin+tc.text+show), a, b)[:2], tc.text)
	}
	for text, kind := range map[string]FaultKind{
		"cp.async.cg.shared.global [%r1], [%rd1+8], 16;":   MisalignedAddress,
		"cp.async.cg.shared.global [%r1+8], [%rd1], 16;":   MisalignedAddress,
		"cp.async.ca.shared.global [%r1+16], [%rd1], 4;":   IllegalAddress,
		"cp.async.cg.shared.global [%r1], [%rd1+128], 16;": IllegalAddress,
	} {
		require.Equal(t, kind, dies(t, entry(begin+text+show), 1, params(uint64(base), uint64(base+64)), 0).Kind, text)
	}
	for _, text := range []string{"cp.async.cg.shared.global [%r1], [%rd1], 8;", "cp.async.ca.shared.global [%r1], [%rd1], 12;", "cp.async.ca.shared [%r1], [%rd1], 4;"} {
		refusedIn(t, text)
	}
}

// Writes of several warps before they arrive are seen by the threads that wait,
// again and again.
func TestMbarrier(t *testing.T) {
	const threads, rounds = 96, 4
	for _, wait := range []string{
		"mbarrier.test_wait.shared.b64 %p1, [bar], %rd4;", "mbarrier.try_wait.acquire.cta.shared::cta.b64 %p1, [bar], %rd4, %r7;",
		"and.b32 %r6, %r2, 1; mbarrier.try_wait.parity.shared.b64 %p1, [bar], %r6;", "mbarrier.test_wait.b64 %p1, [%rd7], %rd4;",
	} {
		text := formHeader + fmt.Sprintf(`.visible .entry k(.param .u64 out) {
.reg .b64 %%rd<9>; .reg .b32 %%r<9>; .reg .pred %%p<3>;
.shared .align 8 .b64 bar; .shared .align 4 .b8 sums[%[3]d];
ld.param.u64 %%rd1, [out]; mov.u32 %%r1, %%tid.x; mov.u32 %%r2, 0; mov.u32 %%r3, sums; mov.u32 %%r7, 1000;
mov.u64 %%rd7, bar; cvta.shared.u64 %%rd7, %%rd7;
setp.ne.u32 %%p2, %%r1, 0; @%%p2 bra made;
mbarrier.init.shared.b64 [bar], %[1]d;
made: bar.sync 0;
again: shl.b32 %%r4, %%r2, 2; add.u32 %%r4, %%r3, %%r4; red.shared.add.u32 [%%r4], %%r1;
mbarrier.arrive.shared.b64 %%rd4, [bar];
wait: %[2]s
@!%%p1 bra wait;
ld.shared.u32 %%r5, [%%r4]; mul.wide.u32 %%rd5, %%r1, 4; add.u64 %%rd6, %%rd1, %%rd5; st.u32 [%%rd6], %%r5;
add.u32 %%r2, %%r2, 1; setp.lt.u32 %%p1, %%r2, %[4]d; @%%p1 bra again;
}
`, threads, wait, 4*rounds, rounds)
		memory := make([]byte, 4*threads)
		launch(t, parsed(t, text), "k", memory, 1, threads, params(uint64(base)))
		for n := range threads {
			require.EqualValues(t, threads*(threads-1)/2, binary.LittleEndian.Uint32(memory[4*n:]), wait)
		}
	}
}

// A barrier counts arrivals, those of copies among them, and those who drop out.
func TestMbarrierCounts(t *testing.T) {
	text := entry(start + `.shared .align 8 .b64 bar;
mbarrier.init.shared.b64 [bar], 5;
mbarrier.arrive.shared.b64 %rd3, [bar], 2; mbarrier.pending_count.b64 %r1, %rd3;
mbarrier.arrive_drop.shared.b64 %rd4, [bar]; mbarrier.pending_count.b64 %r2, %rd4;
cp.async.mbarrier.arrive.shared.b64 [bar]; cp.async.mbarrier.arrive.noinc.shared.b64 [bar];
mbarrier.test_wait.shared.b64 %p1, [bar], %rd3; selp.u32 %r3, 1, 0, %p1;
mbarrier.arrive.noComplete.shared.b64 _, [bar], 1;
mbarrier.test_wait.shared.b64 %p1, [bar], %rd3; selp.u32 %r4, 1, 0, %p1;
mbarrier.arrive.shared.b64 %rd5, [bar]; mbarrier.pending_count.b64 %r5, %rd5;
mbarrier.inval.shared.b64 [bar]; ld.shared.u64 %rd6, [bar];
st.v4.u32 [%rd2], {%r1, %r2, %r3, %r4}; st.u32 [%rd2+16], %r5; st.u64 [%rd2+24], %rd6;`)
	require.Equal(t, []uint64{3<<32 | 5, 1 << 32, 4, 0}, results(t, text)[:4])
}

// A sum of several values side by side is one instruction, and gives what was there.
func TestAtomicVectors(t *testing.T) {
	text := entry(start + `ld.v2.u64 {%rd3, %rd4}, [%rd1]; st.v2.u64 [%rd2], {%rd3, %rd4};
mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f40000000; mov.f32 %f3, 0f40400000; mov.f32 %f4, 0f40800000;
red.global.add.v4.f32 [%rd2], {%f1, %f2, %f3, %f4};
atom.relaxed.gpu.global.add.v2.f32 {%f5, %f6}, [%rd2+8], {%f1, %f1}; st.v2.f32 [%rd2+16], {%f5, %f6};
mov.b32 %r1, 0x3c004000; red.global.add.noftz.v2.f16x2 [%rd2+24], {%r1, %r1};
red.global.add.noftz.v2.f16x2 [%rd2+24], {%r1, %r1};
mov.b16 %rs1, 0x3f80; red.global.add.noftz.v4.bf16 [%rd2+32], {%rs1, %rs1, %rs1, %rs1};`)
	word := func(lo, hi float32) uint64 { return uint64(math.Float32bits(hi))<<32 | uint64(math.Float32bits(lo)) }
	require.Equal(t, []uint64{word(11, 22), word(34, 45), word(33, 44), 0x4000440040004400, 0x3f803f803f803f80},
		results(t, text, word(10, 20), word(30, 40))[:5])
	bad := entry(start + "red.global.add.v4.f32 [%rd1+8], {%f1, %f2, %f3, %f4};")
	require.Equal(t, MisalignedAddress, dies(t, bad, 1, params(uint64(base), uint64(base+64)), 0).Kind)
}

// isspacep says which window an address is in.
func TestIsSpace(t *testing.T) {
	text := entry(start + `.shared .align 8 .b64 s; .local .align 8 .b64 l;
mov.u64 %rd3, s; cvta.shared.u64 %rd3, %rd3; mov.u64 %rd4, l; cvta.local.u64 %rd4, %rd4;
mov.u32 %r1, 0;
`)
	text = text[:len(text)-len("\n}\n")]
	bit := 0
	for _, space := range []string{"global", "shared", "local", "const"} {
		for _, at := range []string{"%rd1", "%rd3", "%rd4"} {
			text += fmt.Sprintf("isspacep.%s %%p1, %s; selp.u32 %%r2, %d, 0, %%p1; or.b32 %%r1, %%r1, %%r2;\n", space, at, 1<<bit)
			bit++
		}
	}
	require.EqualValues(t, 0b000_100_010_001, results(t, text+"st.u32 [%rd2], %r1;\n}\n")[0])
}

// Memory of malloc is the kernel's until free, bounded, and checked.
func TestHeap(t *testing.T) {
	const declared = ".extern .func (.param .b64 p) malloc (.param .b64 n);\n.extern .func free (.param .b64 p);\n"
	const take = "{ .param .b64 n; .param .b64 p; st.param.b64 [n], %s; call (p), malloc, (n); ld.param.b64 %s, [p]; }\n"
	const give = "{ .param .b64 p; st.param.b64 [p], %s; call free, (p); }\n"
	run := func(heap *Heap, body string) ([]uint64, error) {
		text := formHeader + declared + entry(start + body)[len(formHeader):]
		memory := make([]byte, 64)
		err := parsed(t, text).Run(context.Background(), "k", Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1},
			Params: params(uint64(base), uint64(base)), Memory: host{base, memory}, Heap: heap})
		return []uint64{binary.LittleEndian.Uint64(memory), binary.LittleEndian.Uint64(memory[8:])}, err
	}
	show := "st.v2.u64 [%rd2], {%rd3, %rd4};"
	first, second := fmt.Sprintf(take, "100", "%rd3"), fmt.Sprintf(take, "100", "%rd4")
	freed := fmt.Sprintf(give, "%rd3")

	got, err := run(NewHeap(1<<20), first+second+"st.u64 [%rd3+96], 5; st.u64 [%rd4], 6; ld.u64 %rd5, [%rd3+96]; sub.u64 %rd4, %rd4, %rd3; st.v2.u64 [%rd2], {%rd5, %rd4};")
	require.NoError(t, err)
	require.EqualValues(t, 5, got[0])
	require.GreaterOrEqual(t, got[1], uint64(100), "they do not overlap")

	got, err = run(NewHeap(128), first+second+show)
	require.NoError(t, err)
	require.NotZero(t, got[0])
	require.Zero(t, got[1], "there is no more")

	heap := NewHeap(128)
	for range 3 { // another kernel's is freed for the next
		got, err = run(heap, first+freed+second+show)
		require.NoError(t, err)
		require.Equal(t, got[0], got[1])
		_, err = run(heap, fmt.Sprintf("mov.u64 %%rd3, %d;", got[1])+freed)
		require.NoError(t, err)
	}
	for _, body := range []string{first + freed + freed, first + "add.u64 %rd3, %rd3, 8;" + freed, "ld.u64 %rd5, [0x800000000000000];"} {
		_, err = run(NewHeap(1<<20), body)
		require.ErrorContains(t, err, IllegalAddress.String(), body)
	}
	got, err = run(nil, first+show)
	require.NoError(t, err)
	require.Zero(t, got[0], "without a heap there is nothing")
}
