#include "corpus.h"

// Every way of rounding, of both widths.
KERNEL(rounded_double)
{
	double a = (double)load<long long>(in, 2 * self()) * 1e-3, b = (double)load<int>(in, 4 * self() + 2) + 0.3;
	double *o = reinterpret_cast<double *>(out) + 24ull * self();
	o[0] = __dadd_rn(a, b); o[1] = __dadd_rz(a, b); o[2] = __dadd_ru(a, b); o[3] = __dadd_rd(a, b);
	o[4] = __dmul_rn(a, b); o[5] = __dmul_rz(a, b); o[6] = __dmul_ru(a, b); o[7] = __dmul_rd(a, b);
	o[8] = __fma_rn(a, b, a); o[9] = __fma_rz(a, b, a); o[10] = __fma_ru(a, b, a); o[11] = __fma_rd(a, b, a);
	o[12] = __ddiv_rn(a, b); o[13] = __ddiv_rz(a, b); o[14] = __ddiv_ru(a, b); o[15] = __ddiv_rd(a, b);
	double p = fabs(b);
	o[16] = __dsqrt_rn(p); o[17] = __dsqrt_rz(p); o[18] = __dsqrt_ru(p); o[19] = __dsqrt_rd(p);
	o[20] = __drcp_rn(b); o[21] = __drcp_rz(b); o[22] = __drcp_ru(b); o[23] = __drcp_rd(b);
}

KERNEL(rounded_float)
{
	float a = (float)load<int>(in, 2 * self()) * 1e-3f, b = (float)load<short>(in, 4 * self() + 2) + 0.3f;
	float *o = reinterpret_cast<float *>(out) + 28ull * self();
	o[0] = __fadd_rn(a, b); o[1] = __fadd_rz(a, b); o[2] = __fadd_ru(a, b); o[3] = __fadd_rd(a, b);
	o[4] = __fmul_rn(a, b); o[5] = __fmul_rz(a, b); o[6] = __fmul_ru(a, b); o[7] = __fmul_rd(a, b);
	o[8] = __fmaf_rn(a, b, a); o[9] = __fmaf_rz(a, b, a); o[10] = __fmaf_ru(a, b, a); o[11] = __fmaf_rd(a, b, a);
	o[12] = __fdiv_rn(a, b); o[13] = __fdiv_rz(a, b); o[14] = __fdiv_ru(a, b); o[15] = __fdiv_rd(a, b);
	float p = fabsf(b);
	o[16] = __fsqrt_rn(p); o[17] = __fsqrt_rz(p); o[18] = __fsqrt_ru(p); o[19] = __fsqrt_rd(p);
	o[20] = __frcp_rn(b); o[21] = __frcp_rz(b); o[22] = __frcp_ru(b); o[23] = __frcp_rd(b);
	o[24] = __saturatef(a); o[25] = fminf(a, b); o[26] = fmaxf(a, b); o[27] = copysignf(a, b);
}

// Conversions between all of them.
KERNEL(conversions)
{
	float f = (float)load<int>(in, 2 * self()) * (load<u8>(in, 8 * self()) & 1 ? 1e-4f : 10.0f);
	double d = (double)load<long long>(in, self()) * (load<u8>(in, 8 * self()) & 2 ? 1e-12 : 3.0);
	int i = load<int>(in, 2 * self());
	long long l = load<long long>(in, self());
	u64 *o = reinterpret_cast<u64 *>(out) + 20ull * self();
	o[0] = (u64)(u32)__float2int_rn(f) << 32 | (u32)__float2int_rz(f);
	o[1] = (u64)(u32)__float2int_ru(f) << 32 | (u32)__float2int_rd(f);
	o[2] = (u64)__float2uint_rn(f) << 32 | __float2uint_ru(f);
	o[3] = __float2ll_rd(f);
	o[4] = __float2ull_ru(f);
	o[5] = (u64)(u32)__double2int_rn(d) << 32 | __double2uint_rd(d);
	o[6] = __double2ll_rz(d);
	o[7] = __double2ull_rn(d);
	o[8] = (u64)__float_as_uint(__double2float_rn(d)) << 32 | __float_as_uint(__double2float_rz(d));
	o[9] = (u64)__float_as_uint(__double2float_ru(d)) << 32 | __float_as_uint(__double2float_rd(d));
	o[10] = (u64)__float_as_uint(__int2float_rn(i)) << 32 | __float_as_uint(__int2float_rz(i));
	o[11] = (u64)__float_as_uint(__uint2float_ru(i)) << 32 | __float_as_uint(__int2float_rd(i));
	o[12] = __double_as_longlong(__ll2double_rn(l));
	o[13] = __double_as_longlong(__ll2double_rz(l));
	o[14] = __double_as_longlong(__ull2double_ru(l));
	o[15] = (u64)__float_as_uint(__ll2float_rd(l)) << 32 | __float_as_uint(__ull2float_rn(l));
	o[16] = __double_as_longlong(rint(d)) ^ __double_as_longlong(floor(d));
	o[17] = (u64)__float_as_uint(ceilf(f)) << 32 | __float_as_uint(truncf(f));
	o[18] = (u64)__float_as_uint(roundf(f)) << 32 | __float_as_uint(rintf(f));
	o[19] = (u64)(u32)__double2hiint(d) << 32 | (u32)(signed char)f | (u32)(u16)f << 16;
}

// Any bits at all: infinities, subnormals; where a NaN comes out, only that.
static __device__ u32 known(float f) { return f == f ? __float_as_uint(f) : 0x7fc00000; }
static __device__ u64 known(double d) { return d == d ? (u64)__double_as_longlong(d) : 0x7ff8000000000000ull; }

KERNEL(any_float)
{
	float a = __uint_as_float(load<u32>(in, 2 * self())), b = __uint_as_float(load<u32>(in, 2 * self() + 1));
	u32 *o = reinterpret_cast<u32 *>(out) + 12ull * self();
	o[0] = known(a + b);
	o[1] = known(a * b);
	o[2] = known(a / b);
	o[3] = known(fmaf(a, b, b));
	o[4] = known(sqrtf(a));
	o[5] = known(fminf(a, b));
	o[6] = known(fmaxf(a, b));
	o[7] = (a < b) | (a <= b) << 1 | (a > b) << 2 | (a >= b) << 3 | (a == b) << 4 | (a != b) << 5 | isnan(a) << 6 | isinf(b) << 7 | isfinite(a) << 8 | signbit(a) << 9;
	o[8] = known(fmodf(a, b));
	o[9] = known(ldexpf(a, (int)(b > 0) * 20 - 9));
	o[10] = known(nextafterf(a, b));
	int e;
	o[11] = known(frexpf(a, &e)) + e;
}

KERNEL(any_double)
{
	double a = __longlong_as_double(load<long long>(in, 2 * self())), b = __longlong_as_double(load<long long>(in, 2 * self() + 1));
	u64 *o = reinterpret_cast<u64 *>(out) + 8ull * self();
	o[0] = known(a + b);
	o[1] = known(a * b);
	o[2] = known(a / b);
	o[3] = known(fma(a, b, b));
	o[4] = known(sqrt(a));
	o[5] = known(fmin(a, b)) ^ known(fmax(a, b));
	o[6] = (a < b) | (a <= b) << 1 | (a > b) << 2 | (a == b) << 3 | isnan(b) << 4;
	o[7] = known((float)a) | (u64)known((float)b) << 32;
}

// Series and functions that nvcc brings itself.
KERNEL(series)
{
	double x = load<int>(in, self()) / 2147483648.0, sum = 0, term = 1;
	for (int k = 1; k < 25; k++) {
		sum += term;
		term = term * x / k;
	}
	double p = 1;
	for (int k = 0; k < 10; k++)
		p = fma(p, x, 1.0 / (k + 1));
	store<double>(out, 2 * self(), sum);
	store<double>(out, 2 * self() + 1, p + hypot(x, 0.75) + cbrt(x));
}
