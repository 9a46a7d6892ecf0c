package ptx

import (
	"context"
	"strings"
	"testing"
)

// benchKernel runs a loop of simple instructions, so many times in each thread.
const benchKernel = `.version 7.4
.target sm_75
.address_size 64
.visible .entry k(.param .u64 in, .param .u32 count) {
.reg .b32 %r<10>; .reg .f32 %f<4>; .reg .b64 %rd<5>; .reg .pred %p<3>;
ld.param.u64 %rd1, [in];
ld.param.u32 %r1, [count];
cvta.to.global.u64 %rd2, %rd1;
mov.u32 %r2, %tid.x;
mul.wide.u32 %rd3, %r2, 4;
add.s64 %rd4, %rd2, %rd3;
mov.f32 %f1, 0f3F800000;
mov.u32 %r5, 0;
$L__loop:
BODY
add.s32 %r5, %r5, 1;
setp.lt.u32 %p1, %r5, %r1;
@%p1 bra $L__loop;
st.global.u32 [%rd4], %r3;
ret;
}
`

// Simple instructions per second of one core.
func BenchmarkInterpreter(b *testing.B) {
	for _, c := range []struct{ name, body string }{
		{"integers", "mad.lo.s32 %r3, %r3, %r5, %r2; xor.b32 %r4, %r3, %r5; shl.b32 %r6, %r4, 3; add.s32 %r3, %r6, %r4; and.b32 %r3, %r3, 65535;"},
		{"floats", "fma.rn.f32 %f2, %f1, %f1, %f2; mul.f32 %f3, %f2, 0f3F000000; add.f32 %f1, %f3, %f1; sub.f32 %f2, %f1, %f3;"},
		{"memory", "ld.global.u32 %r3, [%rd4]; add.s32 %r3, %r3, %r5; st.global.u32 [%rd4], %r3; ld.global.u32 %r4, [%rd4];"},
		{"branches", "setp.ne.s32 %p2, %r5, 77; @%p2 bra $L__a; add.s32 %r3, %r3, 1; $L__a: selp.b32 %r4, %r3, %r5, %p2;"},
	} {
		b.Run(c.name, func(b *testing.B) {
			m := parsed(b, strings.Replace(benchKernel, "BODY", c.body, 1))
			perLoop := strings.Count(c.body, ";") + 3
			const count, threads = 2000, 64
			memory := make([]byte, 4*threads)
			one := m.Run
			ran := 0
			for b.Loop() {
				err := one(context.Background(), "k", Launch{
					Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{threads, 1, 1},
					Params: params(uint64(base), uint32(count)), Memory: host{base, memory},
				})
				if err != nil {
					b.Fatal(err)
				}
				ran += count * threads * perLoop
			}
			b.ReportMetric(float64(ran)/b.Elapsed().Seconds()/1e6, "Minst/s")
		})
	}
}
