#include "corpus.h"

// Quotients and remainders of every width, by what is never zero.
KERNEL(divisions)
{
	u64 a = load<u64>(in, 2 * self()), b = load<u64>(in, 2 * self() + 1) >> (a & 63) | 1;
	long long sa = a, sb = (long long)(b << 1 | 1) >> 1;
	if (sb == 0 || sb == -1)
		sb = 3;
	u64 at = 8ull * self();
	store<u64>(out, at, a / b);
	store<u64>(out, at + 1, a % b);
	store<long long>(out, at + 2, sa / sb);
	store<long long>(out, at + 3, sa % sb);
	store<u32>(out, 2 * (at + 4), (u32)a / ((u32)b | 1));
	store<u32>(out, 2 * (at + 4) + 1, (u32)a % ((u32)b | 1));
	store<int>(out, 2 * (at + 5), (int)a / ((int)(b >> 3) | 1));
	store<int>(out, 2 * (at + 5) + 1, (int)(a >> 8) % ((int)b | 0x10));
	store<short>(out, 4 * (at + 6), (short)a / ((short)(b & 0x7ff) + 1));
	store<u16>(out, 4 * (at + 6) + 1, (u16)a % ((u16)(b & 0x7fff) + 1));
	store<u64>(out, at + 7, a / 1000000007ull + a % 10);
}

// The functions on bits.
KERNEL(bit_functions)
{
	u32 a = load<u32>(in, 2 * self()), b = load<u32>(in, 2 * self() + 1);
	u64 w = (u64)a << 32 | b;
	u32 *o = reinterpret_cast<u32 *>(out) + 24ull * self();
	o[0] = __popc(a) | __popcll(w) << 8 | __clz(a) << 16 | __clzll(w >> (b & 63)) << 24;
	o[1] = __brev(a);
	u64 r = __brevll(w);
	o[2] = (u32)r;
	o[3] = (u32)(r >> 32);
	o[4] = __ffs(a & -256) | __ffsll(w & -65536ll) << 8;
	o[5] = __byte_perm(a, b, a & 0x7777);
	o[6] = __funnelshift_l(a, b, b);
	o[7] = __funnelshift_r(a, b, a);
	o[8] = __funnelshift_lc(a, b, b & 63);
	o[9] = __funnelshift_rc(a, b, b & 63);
	o[10] = __mulhi((int)a, (int)b);
	o[11] = __umulhi(a, b);
	o[12] = (u32)__mul64hi((long long)w, (long long)r);
	o[13] = (u32)__umul64hi(w, r);
	o[14] = __mul24((int)a, (int)b);
	o[15] = __umul24(a, b);
	o[16] = __sad((int)a, (int)b, 5u);
	o[17] = __usad(a, b, 7u);
	o[18] = __hadd((int)a, (int)b);
	o[19] = __urhadd(a, b);
	o[20] = __fns(a, b & 31, (int)(b >> 5 & 7) - 3);
	o[21] = abs((int)a) ^ (u32)llabs((long long)w);
	o[22] = min((int)a, (int)b) ^ max(a, b);
	o[23] = __uhadd(a, b) + __rhadd((int)a, (int)b);
}

// Four products at once.
KERNEL(dot_products)
{
	u32 a = load<u32>(in, 2 * self()), b = load<u32>(in, 2 * self() + 1);
	int4 v;
	v.x = __dp4a((int)a, (int)b, 7);
	v.y = (int)__dp4a(a, b, 9u);
	v.z = __dp2a_lo((int)a, (int)b, -3) + __dp2a_hi((int)a, (int)b, 11);
	v.w = (int)(__dp2a_lo(a, b, 1u) ^ __dp2a_hi(a, b, 2u));
	store<int4>(out, self(), v);
}

// Functions on two halves or four bytes of a word.
KERNEL(simd)
{
	u32 a = load<u32>(in, 2 * self()), b = load<u32>(in, 2 * self() + 1);
	u32 *o = reinterpret_cast<u32 *>(out) + 32ull * self();
	o[0] = __vadd4(a, b);
	o[1] = __vsub4(a, b);
	o[2] = __vaddss4(a, b);
	o[3] = __vaddus4(a, b);
	o[4] = __vsubss4(a, b);
	o[5] = __vsubus4(a, b);
	o[6] = __vabsdiffs4(a, b);
	o[7] = __vabsdiffu4(a, b);
	o[8] = __vmaxs4(a, b);
	o[9] = __vmaxu4(a, b);
	o[10] = __vmins4(a, b);
	o[11] = __vminu4(a, b);
	o[12] = __vavgs4(a, b);
	o[13] = __vavgu4(a, b);
	o[14] = __vcmpeq4(a, b & 0xff00ff00 | a & 0x00ff00ff);
	o[15] = __vcmpgts4(a, b);
	o[16] = __vcmpltu4(a, b);
	o[17] = __vsetgeu4(a, b);
	o[18] = __vabs4(a);
	o[19] = __vneg4(a);
	o[20] = __vadd2(a, b);
	o[21] = __vsub2(a, b);
	o[22] = __vaddss2(a, b);
	o[23] = __vmaxs2(a, b);
	o[24] = __vminu2(a, b);
	o[25] = __vabsdiffu2(a, b);
	o[26] = __vavgs2(a, b);
	o[27] = __vsads4(a, b);
	o[28] = __vsadu4(a, b);
	o[29] = __vhaddu4(a, b);
	o[30] = __vseteq2(a, b);
	o[31] = __viaddmax_s32((int)a, (int)b, 5) ^ __vimax3_u32(a, b, 77u) ^ __vimin_s32_relu((int)a, (int)b);
}

// Widths changed, signs extended, shifts by more than there is.
KERNEL(widths)
{
	u64 v = load<u64>(in, self());
	u64 *o = reinterpret_cast<u64 *>(out) + 4ull * self();
	signed char c = (signed char)v;
	short s = (short)(v >> 8);
	int i = (int)(v >> 16);
	o[0] = (long long)c * s + (u8)v - (u16)(v >> 3);
	o[1] = (long long)i >> (v & 31) ^ (u64)(u32)i << (v & 31);
	o[2] = (u64)((__int128)(long long)v * (long long)(v ^ 12345) >> 50);
	o[3] = (u64)((unsigned __int128)v * v % 1000000007u);
}
