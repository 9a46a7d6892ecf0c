package ptx

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Whatever a module says, its kernels end with their result, a fault, or because
// nobody wants them any more. There is one block: those of kernels that are no good race.
func FuzzRun(f *testing.F) {
	for _, name := range []string{"vector", "pattern", "memory"} {
		f.Add(kernelText(f, name))
	}
	for form := range recorded(recordedForms) {
		if len(form)%7 == 0 { // a few of many that are alike
			f.Add(formHeader + newHashForm(form).kernel(0))
		}
	}
	const registers = "mov.u64 %rd1, 0x7f0000000000; mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 7;\n"
	for _, body := range []string{
		".param .b32 r; .param .b64 a; L: call (r), f, (a); bra L; }\n.func (.param .b32 r) f(.param .b64 a) { ret; ",
		"bar.sync 1, 64; bar.arrive 2, 32; bar.red.popc.u32 %r2, %r1, 32, %p1; barrier.cta.sync 0;",
		"vote.sync.ballot.b32 %r2, %p1, %r1; match.any.sync.b64 %r3, %rd1, 3; shfl.sync.up.b32 %r4|%p2, %r1, %r2, 0x1f00, -1; redux.sync.add.s32 %r2, %r1, 7; activemask.b32 %r5; elect.sync %r6|%p3, -1;",
		"alloca.u64 %rd2, %rd1, 32; stacksave.u64 %rd3; stackrestore.u64 %rd1; st.local.u8 [%rd2], 1;",
		"t: .branchtargets a, b; brx.idx %r1, t; a: trap; b: exit;",
		"atom.add.noftz.f16x2 %r1, [%rd1], %r2; atom.cas.b16 %rs1, [%rd1+2], %rs2, 3; red.v2.f32.add [%rd1], {%f1, %f2}; atom.inc.u32 %r1, [%rd1], 5;",
		"isspacep.const %p1, %rd1; cvta.param.u64 %rd2, %rd1; ld.volatile.u16 %rs1, [%rd2]; ld.v4.u32 {%r1, _, %r2, %r3}, [%rd1];",
		".shared .align 8 .b8 s[64]; mbarrier.init.shared.b64 [s], 3; mbarrier.arrive.shared.b64 %rd2, [s], 2; mbarrier.test_wait.parity.shared.b64 %p1, [s], 0; cp.async.ca.shared.global [s], [%rd1], 8, 3;",
		"vmad.s32.s32.s32.sat.shr7 %r1, -%r2.b0, %r3, %r4; vadd4.u32.s32.u32.sat %r1.b21, %r2.b7310, %r3, %r4; bfi.b64 %rd1, %rd2, %rd3, %r1, %r2; shf.l.clamp.b32 %r1, %r2, %r3, 99; fns.b32 %r1, %r2, %r3, -4;",
		"div.rm.ftz.f32 %f1, %f2, %f3; sqrt.rp.f64 %fd1, %fd2; cvt.rzi.sat.u8.f64 %rs1, %fd1; cvt.rn.bf16x2.f32 %r1, %f1, %f2; ex2.approx.f16x2 %r1, %r2; div.s16 %rs1, %rs2, %rs3; rem.u64 %rd1, %rd2, %rd3;",
	} {
		f.Add(entry(registers + body))
	}
	for _, arch := range []string{"sm_52", "sm_90"} { // in step, with jumps, loops and calls
		f.Add(strings.Replace(formHeader, "sm_75", arch, 1) + strings.TrimPrefix(entry(registers+`
more: ld.volatile.u32 %r2, [%rd1]; @%p1 bra more; t: .branchtargets more, inner, over; vote.ballot.b32 %r3, %p1;
inner: { .param .b32 r; .param .b64 a; call (r), f, (a); } setp.lt.u32 %p1, %r2, %r1; @%p1 bra inner; @!%p1 bra more; brx.idx %r1, t;
over: st.volatile.u32 [%rd1], %r1; }
.func (.param .b32 r) f(.param .b64 a) { .reg .pred %p; .reg .b64 %rd; mov.u64 %rd, 0x7f0000000000; again: ld.volatile.u64 %rd, [%rd]; setp.eq.u64 %p, %rd, 0; @!%p bra again; ret; `), formHeader))
	}
	f.Add(formHeader + printDeclared + ".global .b8 s[9] = {37,45,42,46,51,108,108,100,0};\n" + strings.TrimPrefix(entry(`.param .b64 a; .param .b64 b; .param .b32 r;
mov.u64 %rd1, s; st.param.b64 [a], %rd1; st.param.b64 [b], %rd1; call (r), vprintf, (a, b);`), formHeader))
	f.Fuzz(func(t *testing.T, text string) {
		m, err := Parse(text)
		if err != nil {
			return
		}
		memory := make([]byte, 1<<12)
		launch := Launch{
			Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{33, 1, 1}, Shared: 64, Memory: host{base, memory}, Heap: NewHeap(1 << 20),
			Params: params(uint64(base), uint64(base+64)), Address: func(string) uint64 { return base }, Stdout: io.Discard, Stderr: io.Discard,
		}
		for _, name := range m.Entries() {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
			err := m.Run(ctx, name, launch)
			cancel()
			var fault *Fault
			require.True(t, err == nil || errors.As(err, &fault) || errors.Is(err, context.DeadlineExceeded), "%v", err)
		}
	})
}
