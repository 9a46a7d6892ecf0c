package ptx

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every form of arithmetic gives what it gives on an H200, to the bit.
func TestForms(t *testing.T) {
	for form, known := range recorded(recordedForms) {
		m, err := Parse(formHeader + newHashForm(form).kernel(0))
		if known == "refused" {
			require.ErrorContains(t, err, "not supported", form)
			continue
		}
		require.NoError(t, err, form)
		input := formInput(form)
		var memory []byte
		for operands := range slices.Chunk(input, 24) {
			memory = append(append(memory, operands...), make([]byte, 8*hashWords-24)...)
		}
		results := len(memory)
		memory = append(memory, make([]byte, 8*formCases)...)
		launch(t, m, "k0", memory, 1, formCases, params(uint64(base), uint64(base+results)))
		require.NotEmpty(t, known, form)
		for n, want := range strings.Fields(known) {
			got := binary.LittleEndian.Uint64(memory[results+8*n:])
			if fmt.Sprintf("%x", got) != want && !open(form, input[24*n:]) {
				t.Errorf("%s of %x: %x, on an H200 %s", form, input[24*n:24*n+24], got, want)
			}
		}
	}
}

// open reports whether PTX leaves the result open: of a division by zero.
func open(form string, operands []byte) bool {
	op, t, _ := strings.Cut(strings.Fields(form)[0], ".")
	size := map[string]int{"16": 2, "32": 4, "64": 8}[t[len(t)-2:]]
	divisor := operands[8 : 8+size]
	return (op == "div" || op == "rem") && t[0] != 'r' && t[0] != 'f' && strings.Trim(string(divisor), "\x00") == ""
}

// results runs a kernel of one thread, which is given two addresses of eight words, and
// returns the second's.
func results(t *testing.T, text string, in ...uint64) []uint64 {
	t.Helper()
	return resultsOf(t, parsed(t, text), in...)
}

func resultsOf(t *testing.T, m *Module, in ...uint64) []uint64 {
	t.Helper()
	memory := make([]byte, 128)
	for i, v := range in {
		binary.LittleEndian.PutUint64(memory[8*i:], v)
	}
	launch(t, m, "k", memory, 1, 1, params(uint64(base), uint64(base+64)))
	out := make([]uint64, 8)
	for i := range out {
		out[i] = binary.LittleEndian.Uint64(memory[64+8*i:])
	}
	return out
}

const start = "ld.param.u64 %rd1, [in];\nld.param.u64 %rd2, [out];\n"

// Instructions other than arithmetic do what the ISA says.
func TestInstructions(t *testing.T) {
	for _, tc := range []struct {
		body string
		in   []uint64
		want []uint64
	}{
		{"ld.s8 %r1, [%rd1]; st.u32 [%rd2], %r1;", []uint64{0x80}, []uint64{0xffffff80}},
		{"ld.u8 %r1, [%rd1]; st.u32 [%rd2], %r1;", []uint64{0x1ff}, []uint64{0xff}},
		{"ld.s16 %rd3, [%rd1+2]; st.u64 [%rd2], %rd3;", []uint64{0x80010000}, []uint64{0xffffffffffff8001}},
		{"ld.v2.s8 {%rs1, %rs2}, [%rd1]; st.v2.u16 [%rd2], {%rs1, %rs2};", []uint64{0x7f80}, []uint64{0x007fff80}},
		{"ld.v4.u32 {%r1, %r2, %r3, _}, [%rd1]; st.v2.u32 [%rd2], {%r3, %r1};", []uint64{0x200000001, 0x400000003}, []uint64{0x100000003}},
		{"ld.u64 %rd3, [%rd1]; st.u8 [%rd2+1], %rd3;", []uint64{0x1234}, []uint64{0x3400}},
		{"ld.global.nc.L1::no_allocate.u32 %r1, [%rd1]; st.volatile.global.u32 [%rd2], %r1;", []uint64{5}, []uint64{5}},
		{"ld.u64 %rd3, [%rd1]; mov.b64 {%r1, %r2}, %rd3; mov.b64 %rd4, {%r2, %r1}; st.u64 [%rd2], %rd4;", []uint64{0x100000002}, []uint64{0x200000001}},
		{"mov.b32 %r1, {%rs1, %rs2}; mov.b32 {%rs3, _}, 0x50007; st.u16 [%rd2], %rs3;", nil, []uint64{7}},
		{"mov.f32 %f1, 0fC0490FDB; mov.b32 %r1, %f1; st.u32 [%rd2], %r1;", nil, []uint64{0xc0490fdb}},
		{"mov.f64 %fd1, -1.5; st.f64 [%rd2], %fd1;", nil, []uint64{math.Float64bits(-1.5)}},
		{"mov.u32 %r1, -1; st.u32 [%rd2], %r1;", nil, []uint64{0xffffffff}},
		{"mov.u32 %r1, 0b101; mov.u32 %r2, 017; st.v2.u32 [%rd2], {%r1, %r2};", nil, []uint64{0xf00000005}},
		{"ld.u32 %r1, [%rd1]; setp.lt.s32 %p1|%p2, %r1, 5; selp.u32 %r1, 1, 2, %p1; selp.u32 %r2, 1, 2, %p2; st.v2.u32 [%rd2], {%r1, %r2};", []uint64{3}, []uint64{0x200000001}},
		{"setp.eq.u32 %p1, 1, 2; setp.lt.and.u32 %p2|%p3, 1, 2, !%p1; selp.u32 %r1, 1, 2, %p2; selp.u32 %r2, 1, 2, %p3; st.v2.u32 [%rd2], {%r1, %r2};", nil, []uint64{0x200000001}},
		{"setp.eq.u32 %p1, 1, 1; setp.eq.xor.u32 %p2, 1, 1, %p1; not.pred %p3, %p2; and.pred %p3, %p3, %p1; selp.u32 %r1, 8, 9, %p3; st.u32 [%rd2], %r1;", nil, []uint64{8}},
		{"set.eq.or.u32.u32 %r1, 1, 2, %p1; st.u32 [%rd2], %r1;", nil, []uint64{0}},
		{"mov.u32 %r1, 7; setp.eq.u32 %p1, %r1, 7; @!%p1 mov.u32 %r1, 8; @%p1 add.u32 %r1, %r1, 1; st.u32 [%rd2], %r1;", nil, []uint64{8}},
		{"cvt.s8.s32 %r1, 200; st.u32 [%rd2], %r1;", nil, []uint64{0xffffffc8}},
		{"cvt.u8.u32 %r1, 0x1ff; st.u32 [%rd2], %r1;", nil, []uint64{0xff}},
		{"mov.u32 %r1, %ntid.x; mov.u32 %r2, %nctaid.z; add.u32 %r1, %r1, %laneid; st.v2.u32 [%rd2], {%r1, %r2};", nil, []uint64{0x100000001}},
		{"mov.u64 %rd3, %clock64; mov.u64 %rd4, %globaltimer; setp.ne.u64 %p1, %rd4, 0; selp.u32 %r1, 1, 0, %p1; st.u32 [%rd2], %r1;", nil, []uint64{1}},
		{"atom.add.u32 %r1, [%rd1], 5; ld.u32 %r2, [%rd1]; st.v2.u32 [%rd2], {%r1, %r2};", []uint64{3}, []uint64{0x800000003}},
		{"atom.global.min.s32 %r1, [%rd1], -4; ld.u32 %r2, [%rd1]; st.v2.u32 [%rd2], {%r1, %r2};", []uint64{3}, []uint64{0xfffffffc00000003}},
		{"atom.inc.u32 %r1, [%rd1], 3; atom.inc.u32 %r2, [%rd1], 3; st.v2.u32 [%rd2], {%r1, %r2};", []uint64{3}, []uint64{3}},
		{"atom.dec.u32 %r1, [%rd1], 3; ld.u32 %r2, [%rd1]; st.v2.u32 [%rd2], {%r1, %r2};", []uint64{0}, []uint64{3 << 32}},
		{"atom.cas.b64 %rd3, [%rd1], 3, 9; atom.exch.b64 %rd4, [%rd1], 1; st.v2.u64 [%rd2], {%rd3, %rd4};", []uint64{3}, []uint64{3, 9}},
		{"red.and.b32 [%rd1], 6; red.or.b32 [%rd1], 8; red.xor.b32 [%rd1], 1; ld.u32 %r1, [%rd1]; st.u32 [%rd2], %r1;", []uint64{7}, []uint64{15}},
		{"red.add.f32 [%rd1], 0f3F800000; red.max.u64 [%rd1+8], 5; ld.u32 %r1, [%rd1]; ld.u64 %rd3, [%rd1+8]; st.u32 [%rd2], %r1; st.u64 [%rd2+8], %rd3;", []uint64{0x3f800000, 4}, []uint64{0x40000000, 5}},
		// The upper half of a pair leaves nothing above 32 bits, which others would find.
		{"mov.u32 %r1, 0x80008000; min.s16x2 %r2, %r1, %r1; prmt.b32 %r3, %r2, 0, 0x7654; add.u16x2 %r2, %r1, %r1; shf.l.wrap.b32 %r4, %r2, 0, 0; st.v2.u32 [%rd2], {%r3, %r4};", nil, nil},
		// A sum of floats in device memory is flushed, one in shared memory is not.
		{"atom.global.add.f32 %f1, [%rd1], 0f00000001; red.add.f32 [%rd1+4], 0f80400000; ld.u64 %rd3, [%rd1]; mov.b32 %r1, %f1; st.u64 [%rd2], %rd3; st.u32 [%rd2+8], %r1;", []uint64{0x8080000000000002}, []uint64{0x8080000000000000, 2}},
		{".shared .align 4 .f32 s; mov.u32 %r1, 2; st.shared.u32 [s], %r1; mov.u32 %r2, s; cvt.u64.u32 %rd3, %r2; cvta.shared.u64 %rd3, %rd3; red.shared.add.f32 [s], 0f00000001; red.add.f32 [%rd3], 0f00000001; ld.shared.u32 %r3, [s]; st.u32 [%rd2], %r3;", nil, []uint64{4}},
		{".local .align 8 .b8 room[64]; mov.u64 %rd3, room; add.u64 %rd3, %rd3, 8; st.local.u32 [%rd3], 5; cvta.local.u64 %rd4, %rd3; ld.u32 %r1, [%rd4]; cvta.to.local.u64 %rd5, %rd4; setp.eq.u64 %p1, %rd5, %rd3; @%p1 add.u32 %r1, %r1, 1; st.u32 [%rd2], %r1;", nil, []uint64{6}},
		{".shared .align 4 .b8 a[4], b[4]; st.shared.u32 [b], 5; mov.u32 %r3, b; cvt.u64.u32 %rd3, %r3; cvta.shared.u64 %rd3, %rd3; ld.u32 %r1, [%rd3]; ld.shared.u32 %r2, [%r3]; st.v2.u32 [%rd2], {%r1, %r2};", nil, []uint64{0x500000005}},
		{"prefetch.global.L2::evict_last [%rd1]; ld.global.L1::evict_first.L2::evict_last.u32 %r1, [%rd1]; st.global.L2::evict_first.u32 [%rd2], %r1;", []uint64{5}, []uint64{5}},
		{"prefetch.global.L1 [%rd1]; membar.gl; fence.acq_rel.gpu; bar.sync 0; barrier.sync.aligned 1, 32; st.u32 [%rd2], 1;", nil, nil},
		{"mov.b64 %rd3, in; ld.param.u64 %rd3, [%rd3+8]; st.u32 [%rd3], 4; exit;", nil, []uint64{4}},
		{"bra.uni over; trap; over: { .reg .b32 %r1; mov.u32 %r1, 3; } mov.u32 %r1, 4; { .reg .b32 %r1; mov.u32 %r1, 5; } st.u32 [%rd2], %r1;", nil, []uint64{4}},
	} {
		if strings.Contains(tc.body, "barrier.sync.aligned 1, 32") {
			continue // one thread would wait for ever: see TestDeadlock
		}
		want := append(tc.want, make([]uint64, 8-len(tc.want))...)
		require.Equal(t, want, results(t, entry(start+tc.body), tc.in...), tc.body)
	}
}

// Device functions have frames of their own, and may call themselves.
func TestCalls(t *testing.T) {
	text := formHeader + `
.func (.param .b32 r) sum(.param .b32 n, .param .b64 p);
.func (.param .b32 r) sum(.param .b32 n, .param .b64 p) {
	.local .align 16 .b8 mine[16];
	.reg .b32 %r<5>; .reg .b64 %rd<3>; .reg .pred %p<2>;
	ld.param.u32 %r1, [n];
	st.local.u32 [mine+4], %r1;
	setp.eq.u32 %p1, %r1, 0;
	@%p1 bra out;
	sub.u32 %r2, %r1, 1;
	{ .param .b32 a; .param .b64 b; .param .b32 q;
	st.param.b32 [a], %r2; st.param.b64 [b], %rd1;
	call.uni (q), sum, (a, b);
	ld.param.b32 %r3, [q]; }
	ld.local.u32 %r4, [mine+4];
	add.u32 %r1, %r3, %r4;
out:
	st.param.b32 [r], %r1;
	ret;
}
` + strings.TrimPrefix(entry(start+`ld.u32 %r1, [%rd1];
{ .param .b32 a; .param .b64 b; .param .b32 q;
st.param.b32 [a], %r1; st.param.b64 [b], %rd1;
call (q), sum, (a, b);
ld.param.b32 %r2, [q]; }
st.u32 [%rd2], %r2;`), formHeader)
	require.EqualValues(t, 5050, results(t, text, 100)[0])
	memory := make([]byte, 128)
	memory[0] = 100
	err := parsed(t, text).Run(context.Background(), "k", Launch{
		Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, Stack: 1 << 10, Params: params(uint64(base), uint64(base+64)), Memory: host{base, memory},
	})
	require.ErrorContains(t, err, "stack overflow")
	fault := dies(t, text, 1, params(uint64(base), uint64(base+64)), 1<<30)
	require.Equal(t, StackOverflow, fault.Kind)
	require.Equal(t, "sum", fault.Function)
}

// A function that has neither registers nor memory cannot call itself for ever.
func TestCallsTakeMemory(t *testing.T) {
	text := formHeader + ".func f;\n.func f { call f; ret; }\n" + strings.TrimPrefix(entry("call f;"), formHeader)
	require.Equal(t, StackOverflow, dies(t, text, 1, nil, 0).Kind)
}

// Whether functions call themselves is known soon, however many calls there are.
func TestManyCalls(t *testing.T) {
	const n = 5000
	calls := func(f string) string { return strings.Repeat("call "+f+"; ", n) }
	m := parsed(t, formHeader+".func a { ret; }\n.func b { ret; "+calls("a")+"}\n.func c { ret; "+calls("b")+"}\n"+
		strings.TrimPrefix(entry("ret; "+calls("c")), formHeader))
	k := m.functions["k"]
	require.False(t, k.recursive())
	m.functions["a"].calls = []*function{m.functions["b"]}
	require.True(t, k.recursive())
}

// A called function's shared memory is the kernel's, at one place.
func TestSharedOfFunctions(t *testing.T) {
	text := formHeader + `
.func f();
.shared .align 4 .b8 mine[4];
.func f() { .shared .align 4 .b8 its[8]; .reg .b32 %r<2>; ld.shared.u32 %r1, [mine]; st.shared.u32 [its+4], %r1; ret; }
.func g() { call f; ret; }
` + strings.TrimPrefix(entry(start+"st.shared.u32 [mine], 5; call g; ld.shared.u32 %r1, [8]; st.u32 [%rd2], %r1;"), formHeader)
	k, _ := parsed(t, text).Kernel("k")
	require.Equal(t, 12, k.Shared)
	require.EqualValues(t, 5, results(t, text)[0])
}

// dies runs a kernel that does, with memory whose first word is given.
func dies(t *testing.T, text string, threads uint32, p []byte, first uint64) *Fault {
	t.Helper()
	memory := make([]byte, 128)
	binary.LittleEndian.PutUint64(memory, first)
	err := parsed(t, text).Run(context.Background(), "k", Launch{Grid: [3]uint32{2, 1, 1}, Block: [3]uint32{threads, 1, 1}, Params: p, Memory: host{base, memory}})
	var fault *Fault
	require.True(t, errors.As(err, &fault), "%v", err)
	return fault
}

// A kernel's fault is reported with its line, its block and its thread.
func TestFaults(t *testing.T) {
	for _, tc := range []struct {
		body string
		kind FaultKind
		line int
	}{
		{"\nst.u32 [%rd2+1000], 1;", IllegalAddress, 9},
		{"ld.u32 %r1, [0];", IllegalAddress, 8},
		{"ld.u64 %rd1, [%rd2+60];", MisalignedAddress, 8},
		{"ld.v4.u32 {%r1, %r2, %r3, %r4}, [%rd2+8];", MisalignedAddress, 8},
		{"st.v2.u64 [%rd2+64], {%rd1, %rd1};", IllegalAddress, 8},
		{"atom.add.u32 %r1, [%rd2+2], 1;", MisalignedAddress, 8},
		{"st.shared.u32 [0], 1;", IllegalAddress, 8},
		{"st.local.u32 [64], 1;", IllegalAddress, 8},
		{"ld.param.u32 %r1, [in+16];", IllegalAddress, 8},
		{"st.param.u32 [in], 1;", IllegalAddress, 8},
		{"mov.u64 %rd3, 0x7fffffffffffffff; ld.u8 %r1, [%rd3];", IllegalAddress, 8},
		{"trap;", Trap, 8},
		{"bar.sync 1, 64;", Deadlock, 8},
		{"mov.u32 %r1, %tid.x; bar.sync %r1;", Deadlock, 8},
	} {
		fault := dies(t, entry(start+tc.body), 3, params(uint64(base), uint64(base+64)), 0)
		require.Equal(t, tc.kind, fault.Kind, tc.body)
		require.Equal(t, tc.line, fault.Line, tc.body)
		require.Contains(t, fault.Error(), tc.kind.String())
	}
	fault := dies(t, entry(start+"mov.u32 %r1, %tid.x;\nsetp.eq.u32 %p1, %r1, 2;\n@%p1 trap;\nret;"), 3, params(uint64(base), uint64(base+64)), 0)
	require.Equal(t, [3]uint32{2, 0, 0}, fault.Thread)
	require.Equal(t, 10, fault.Line)
}

// shape runs a kernel of many threads over memory.
func shape(t *testing.T, text string, blocks, threads uint32, shared int, n int) []uint32 {
	t.Helper()
	memory := make([]byte, 64+4*n)
	err := parsed(t, text).Run(context.Background(), "k", Launch{
		Grid: [3]uint32{blocks, 1, 1}, Block: [3]uint32{threads, 1, 1}, Shared: shared,
		Params: params(uint64(base), uint64(base+64)), Memory: host{base, memory},
	})
	require.NoError(t, err)
	words := make([]uint32, n)
	_, err = binary.Decode(memory[64:], binary.LittleEndian, words)
	require.NoError(t, err)
	return words
}

// own computes the address of the thread's own word in %rd2, and its number in %r1.
const own = start + `mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r1, %r1, %r2, %r3;
mul.wide.u32 %rd3, %r1, 4; add.u64 %rd2, %rd2, %rd3;
`

// Threads part and go their own ways: loops of different lengths, some end early.
func TestDivergence(t *testing.T) {
	got := shape(t, entry(own+`setp.eq.u32 %p1, %r3, 5; @%p1 exit;
mov.u32 %r4, 0;
more: setp.ge.u32 %p2, %r4, %r1; @%p2 bra over; add.u32 %r4, %r4, 1; bra more;
over: st.u32 [%rd2], %r4;`), 3, 40, 0, 120)
	for i, v := range got {
		if want := uint32(i); i%40 == 5 {
			require.Zero(t, v)
		} else {
			require.Equal(t, want, v)
		}
	}
}

// All of a block pass a barrier together, those that have ended left out, and see
// what was written to shared memory before it; dynamic shared memory lies behind
// the static.
func TestBarrierAndShared(t *testing.T) {
	const threads = 64
	got := shape(t, ".version 7.4\n.target sm_75\n.address_size 64\n.extern .shared .align 16 .b8 dyn[];\n.shared .align 4 .b8 module[4];\n"+strings.TrimPrefix(entry(own+`
.shared .align 4 .b8 pad[12];
setp.eq.u32 %p1, %r3, 9; @%p1 ret;
st.shared.u32 [pad+8], 77; st.shared.u32 [module], 78;
mov.u32 %r4, dyn; shl.b32 %r5, %r3, 2; add.u32 %r6, %r4, %r5; st.shared.u32 [%r6], %r1;
bar.sync 0;
sub.u32 %r7, 63, %r3; shl.b32 %r7, %r7, 2; add.u32 %r7, %r7, %r4; ld.shared.u32 %r8, [%r7];
st.u32 [%rd2], %r8;`), formHeader), 4, threads, 4*threads, 4*threads)
	for i, v := range got {
		switch block, n := i/threads, i%threads; {
		case n == 9, n == 63-9:
			require.Zero(t, v)
		default:
			require.EqualValues(t, block*threads+63-n, v)
		}
	}
}

// A thread that spins does not starve the one that it waits for, in its own block
// or in another.
func TestSpin(t *testing.T) {
	got := shape(t, entry(own+`
setp.eq.u32 %p1, %r3, 63; @%p1 bra last;
wait: ld.volatile.u32 %r4, [%rd1]; setp.eq.u32 %p2, %r4, 0; @%p2 bra wait;
bra over;
last: mov.u32 %r5, %ctaid.x; setp.ne.u32 %p3, %r5, 19; @%p3 bra wait;
membar.gl; st.volatile.u32 [%rd1], 7;
over: ld.volatile.u32 %r4, [%rd1]; st.u32 [%rd2], %r4;`), 20, 64, 0, 20*64)
	for _, v := range got {
		require.EqualValues(t, 7, v)
	}
}

// Parts of one word that many blocks write at the same time stay each what was written.
func TestStrongParts(t *testing.T) {
	for size, typ := range map[int]string{1: "u8", 2: "u16"} {
		text := entry(own + strings.NewReplacer("SIZE", fmt.Sprint(size), "TYPE", typ).Replace(`
mul.wide.u32 %rd3, %r1, SIZE; add.u64 %rd3, %rd1, %rd3; mov.u32 %r4, 0; mov.u32 %r5, 0;
again: add.u32 %r4, %r4, 1; cvt.TYPE.u32 %r6, %r4;
st.release.gpu.TYPE [%rd3], %r6; ld.acquire.gpu.TYPE %r7, [%rd3];
setp.ne.u32 %p1, %r6, %r7; @%p1 add.u32 %r5, %r5, 1;
setp.lt.u32 %p1, %r4, 500000; @%p1 bra again;
st.u32 [%rd2], %r5;`))
		require.Equal(t, make([]uint32, 8), shape(t, text, 8, 1, 0, 8), typ)
	}
	signed := entry(start + "ld.volatile.s8 %r1, [%rd1+3]; ld.relaxed.sys.s16 %r2, [%rd1+6]; st.v2.u32 [%rd2], {%r1, %r2}; st.volatile.u8 [%rd2+5], 7;")
	require.Equal(t, uint64(0xffff0701_ffffff80), results(t, signed, 0x8001_0000_80ff_0000|0xff)[0])
	window := entry(start + "mov.u64 %rd3, in; cvta.param.u64 %rd3, %rd3; ld.volatile.u64 %rd4, [%rd3+8]; setp.eq.u64 %p1, %rd4, %rd2; selp.u32 %r1, 1, 0, %p1; st.u32 [%rd2], %r1;")
	require.EqualValues(t, 1, results(t, window)[0])
}

// Atomics of many blocks lose nothing.
func TestAtomics(t *testing.T) {
	text := entry(start + `
.shared .align 4 .b8 here[4];
mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0;
atom.shared.add.u32 %r3, [here], 1;
bar.sync 0;
ld.shared.u32 %r4, [here];
@!%p1 red.global.add.u32 [%rd2], %r4;
red.global.max.u32 [%rd2+4], %r1;
atom.global.add.u32 %r2, [%rd2+8], 2;`)
	got := shape(t, text, 300, 96, 0, 3)
	require.Equal(t, []uint32{300 * 96, 95, 2 * 300 * 96}, got)
}

// A launch that nobody wants any more ends.
func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	memory := &signal{host: host{base, make([]byte, 128)}, seen: make(chan struct{})}
	go func() {
		<-memory.seen
		cancel()
	}()
	err := parsed(t, entry(start+"again: ld.u32 %r1, [%rd1]; bra again;")).Run(ctx, "k", Launch{
		Grid: [3]uint32{1000, 1, 1}, Block: [3]uint32{32, 1, 1}, Params: params(uint64(base), uint64(base+64)), Memory: memory,
	})
	require.ErrorIs(t, err, context.Canceled)
}

// However much memory a thread takes, a launch has no more of it than its bound.
func TestResidentBlocksFitIntoMemory(t *testing.T) {
	const mib = 1 << 20
	m := parsed(t, formHeader+`
.func again() { call again, (); ret; }
.func helper() { .local .b8 x[262144]; .reg .b64 %rd<2>; mov.u64 %rd1, x; ret; }
.visible .entry plain() { ret; }
.visible .entry large() { .local .b8 x[524288]; .reg .b64 %rd<2>; mov.u64 %rd1, x; ret; }
.visible .entry calls() { .local .b8 x[262144]; .reg .b64 %rd<2>; mov.u64 %rd1, x; call helper, (); ret; }
.visible .entry recurs() { call again, (); ret; }
.func takes() { .reg .b64 %rd<2>; alloca.u64 %rd1, 400000; ret; }
.visible .entry allocas() { call takes, (); ret; }
`)
	for _, c := range []struct {
		kernel                  string
		threads, dynamic, about int
	}{
		{"plain", 1, 0, 128}, {"plain", 64, 0, 128}, {"plain", 1024, 0, 8}, {"plain", 1024, 200 << 10, 8},
		{"large", 1, 0, 128}, {"large", 16, 0, 128}, {"large", 64, 0, 32}, {"large", 1024, 0, 2},
		{"calls", 64, 0, 32}, {"calls", 1024, 0, 2},
		{"recurs", 1, 0, 128}, {"recurs", 512, 0, 2}, {"recurs", 1024, 227 << 10, 1},
		{"allocas", 1, 0, 128}, {"allocas", 512, 0, 2},
	} {
		k, ok := m.Kernel(c.kernel)
		require.True(t, ok)
		require.Equal(t, c.about, k.Resident(c.threads, c.dynamic), "%+v", c)
		require.LessOrEqual(t, c.about*(c.threads*k.Memory+c.dynamic), 1025*mib, "%+v", c)
	}
}

// Dimensions that no kernel has are refused, and kernels that are none.
func TestRunRefuses(t *testing.T) {
	m := parsed(t, entry("ret;"))
	for _, l := range []Launch{
		{Grid: [3]uint32{0, 1, 1}, Block: [3]uint32{1, 1, 1}},
		{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 0, 1}},
		{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{32, 33, 1}},
		{Grid: [3]uint32{1 << 31, 1 << 31, 1 << 31}, Block: [3]uint32{1, 1, 1}},
		{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, Shared: -1},
	} {
		require.Error(t, m.Run(context.Background(), "k", l))
	}
	require.ErrorContains(t, m.Run(context.Background(), "none", Launch{}), "no kernel none")
}

// Shared addresses have 32 bits: a register below zero and an offset make one.
func TestSmallAddresses(t *testing.T) {
	text := entry(start + ".shared .align 4 .b8 a[16]; st.shared.u32 [a+4], 7; ld.u32 %r3, [%rd1]; ld.shared.u32 %r1, [%r3+12]; atom.shared.add.u32 %r2, [%r3+12], 1; st.v2.u32 [%rd2], {%r1, %r2};")
	require.EqualValues(t, 7<<32|7, results(t, text, 0xfffffff8)[0])
	for _, out := range []uint64{0xfffffff0, 4, 0x7ffffff8} {
		require.Equal(t, IllegalAddress, dies(t, text, 1, params(uint64(base), uint64(base+64)), out).Kind, "%#x", out)
	}
}
