// arch: compute_90
#include "corpus.h"
#include <cuda_fp16.h>
#include <cuda_bf16.h>

static __device__ u16 bits(__half h) { return __hisnan(h) ? 0x7fff : __half_as_ushort(h); }
static __device__ u16 bits(__nv_bfloat16 h) { return __hisnan(h) ? 0x7fff : __bfloat16_as_ushort(h); }

// Halves, of any bits.
KERNEL(half_arithmetic)
{
	__half a = __ushort_as_half(load<u16>(in, 2 * self())), b = __ushort_as_half(load<u16>(in, 2 * self() + 1));
	u16 *o = reinterpret_cast<u16 *>(out) + 16ull * self();
	o[0] = bits(__hadd(a, b));
	o[1] = bits(__hsub(a, b));
	o[2] = bits(__hmul(a, b));
	o[3] = bits(__hfma(a, b, a));
	o[4] = bits(__hneg(a));
	o[5] = bits(__habs(b));
	o[6] = bits(__hmin(a, b));
	o[7] = bits(__hmax(a, b));
	o[8] = bits(__hadd_sat(a, b));
	o[9] = __hlt(a, b) | __hle(a, b) << 1 | __heq(a, b) << 2 | __hgt(a, b) << 3 | __hne(a, b) << 4 | __hgtu(a, b) << 5;
	o[10] = bits(__float2half_rn(__half2float(a) * 1.0009f));
	o[11] = bits(__float2half_rz(__half2float(a) * 1.0009f));
	o[12] = bits(__int2half_rn((int)self() * 3 - 500));
	o[13] = (u16)__half2short_rz(a);
	o[14] = (u16)__half2ushort_rd(b);
	o[15] = bits(hfloor(a)) ^ bits(hrint(b));
}

// Two halves at once.
KERNEL(half_pairs)
{
	const __half2 *h = reinterpret_cast<const __half2 *>(in);
	__half2 sum = __float2half2_rn(0.0f);
	for (int i = 0; i < 16; i++) {
		u32 word = load<u32>(in, (self() * 16ull + i) % (n / 4));
		__half2 v = __floats2half2_rn((float)(int)(word & 0xff) / 64, (float)(int)(word >> 8 & 0xff) / 32);
		sum = __hfma2(v, __halves2half2(__high2half(v), __low2half(v)), sum);
		sum = __hsub2(sum, __half2half2(__low2half(v)));
		sum = __hmax2(sum, __hneg2(v));
	}
	(void)h;
	store<u32>(out, self(), *reinterpret_cast<u32 *>(&sum));
}

// A product of matrices of halves, summed as floats.
KERNEL(half_matmul)
{
	u32 row = threadIdx.y, column = threadIdx.x;
	float sum = 0;
	for (int k = 0; k < 16; k++) {
		__half a = __float2half(small(load<u16>(in, row * 16 + k)) / 16), b = __float2half(small(load<u16>(in, 256 + k * 16 + column)) / 16);
		sum += __half2float(a) * __half2float(b);
	}
	store<u16>(out, row * 16 + column, bits(__float2half(sum)));
}

KERNEL(bfloat_arithmetic)
{
	__nv_bfloat16 a = __ushort_as_bfloat16(load<u16>(in, 2 * self())), b = __ushort_as_bfloat16(load<u16>(in, 2 * self() + 1));
	u16 *o = reinterpret_cast<u16 *>(out) + 16ull * self();
	o[0] = bits(__hadd(a, b));
	o[1] = bits(__hsub(a, b));
	o[2] = bits(__hmul(a, b));
	o[3] = bits(__hfma(a, b, a));
	o[4] = bits(__hneg(a));
	o[5] = bits(__habs(b));
	o[6] = bits(__hmin(a, b));
	o[7] = bits(__hmax(a, b));
	o[8] = __hlt(a, b) | __hle(a, b) << 1 | __heq(a, b) << 2 | __hgt(a, b) << 3 | __hne(a, b) << 4;
	o[9] = bits(__float2bfloat16_rn(__bfloat162float(a) * 1.0009f));
	o[10] = bits(__float2bfloat16_rz(__bfloat162float(a) * 1.0009f));
	o[11] = bits(__int2bfloat16_rn((int)self() * 333 - 50000));
	o[12] = (u16)__bfloat162short_rz(a);
	__nv_bfloat162 p = __halves2bfloat162(a, b), q = __hfma2(p, p, p), r = __hmax2(p, q);
	o[13] = bits(__low2bfloat16(q));
	o[14] = bits(__high2bfloat16(q));
	o[15] = bits(__low2bfloat16(r));
}

// Atomic sums of halves that are exact in any order.
KERNEL(half_atomics)
{
	float v = (float)(in[self()] & 3);
	atomicAdd(reinterpret_cast<__half2 *>(out), __floats2half2_rn(v, 1.0f));
	atomicAdd(reinterpret_cast<__half *>(out) + 2, __float2half(v * 0.5f));
	atomicAdd(reinterpret_cast<__nv_bfloat16 *>(out) + 3, __float2bfloat16(threadIdx.x % 64 == 0 ? 1.0f : 0.0f));
	atomicAdd(reinterpret_cast<__nv_bfloat162 *>(out) + 2, __floats2bfloat162_rn(threadIdx.x % 32 == 0 ? 2.0f : 0.0f, 0.0f));
	u16 *word = reinterpret_cast<u16 *>(out) + 6;
	u16 old = *word, seen;
	while ((seen = atomicCAS(word, old, (u16)(old + 3))) != old)
		old = seen;
}
