// arch: compute_90
#include "corpus.h"

#define EVERY 0xffffffffu

// What the threads of a warp can ask each other.
KERNEL(votes)
{
	u32 v = load<u32>(in, self()), lane = threadIdx.x % 32;
	u32 *o = reinterpret_cast<u32 *>(out) + 12ull * self();
	o[0] = __ballot_sync(EVERY, v & 1);
	o[1] = __any_sync(EVERY, (v & 31) == 7) | __all_sync(EVERY, (v & 31) != 9) << 1 | __all_sync(EVERY, 1) << 2;
	o[2] = __match_any_sync(EVERY, v & 7);
	int same;
	o[3] = __match_all_sync(EVERY, v >> 31, &same);
	o[4] = same + 2 * (int)__match_all_sync(EVERY, blockIdx.x, &same);
	o[5] = __match_any_sync(EVERY, (u64)(v & 3) << 40);
	o[6] = __reduce_add_sync(EVERY, v) ^ __reduce_xor_sync(EVERY, v);
	o[7] = __reduce_min_sync(EVERY, v) ^ __reduce_max_sync(EVERY, v);
	o[8] = (u32)__reduce_min_sync(EVERY, (int)v) ^ (u32)__reduce_max_sync(EVERY, (int)v);
	o[9] = __reduce_and_sync(EVERY, v | 0xff) ^ __reduce_or_sync(EVERY, v & 0xff00);
	if (lane < 20) {
		o[10] = __ballot_sync(0xfffff, v & 2);
		if (lane % 2)
			o[11] = __reduce_add_sync(0xaaaaa, v);
		else
			o[11] = __reduce_max_sync(0x55555, v);
	}
}

// Shuffles of every kind, of parts of a warp, and of wide values.
KERNEL(shuffles)
{
	u32 v = load<u32>(in, self()), lane = threadIdx.x % 32;
	u32 *o = reinterpret_cast<u32 *>(out) + 12ull * self();
	o[0] = __shfl_sync(EVERY, v, lane * 7 + 3);
	o[1] = __shfl_up_sync(EVERY, v, 3);
	o[2] = __shfl_down_sync(EVERY, v, 5);
	o[3] = __shfl_xor_sync(EVERY, v, 13);
	o[4] = __shfl_sync(EVERY, v, 2, 8);
	o[5] = __shfl_up_sync(EVERY, v, 2, 4);
	o[6] = __shfl_down_sync(EVERY, v, 1, 16);
	o[7] = __shfl_xor_sync(EVERY, v, 8, 8);
	double d = __shfl_xor_sync(EVERY, v * 0.5, 1);
	o[8] = (u32)__double2hiint(d) ^ (u32)__double2loint(d);
	o[9] = (u32)(__shfl_sync(EVERY, (u64)v * v, lane ^ 31) >> 20);
	o[10] = __float_as_uint(__shfl_down_sync(EVERY, (float)v, 2));
	if (lane >= 16)
		o[11] = __shfl_xor_sync(0xffff0000, v, 4);
}

// Threads of a warp write and read each other's words, with no barrier but the warp's.
KERNEL(warp_memory)
{
	__shared__ volatile u32 words[128];
	u32 t = threadIdx.x, lane = t % 32;
	words[t] = load<u32>(in, self());
	__syncwarp();
	for (u32 s = 16; s > 0; s /= 2) {
		if (lane < s)
			words[t] = words[t] + words[t + s];
		__syncwarp();
	}
	store<u32>(out, self(), words[t & ~31u] + lane);
}

// Divided threads meet again, some by other ways.
KERNEL(meetings)
{
	u32 v = load<u32>(in, self()), lane = threadIdx.x % 32, sum = 0;
	for (u32 i = 0; i < (v & 7); i++)
		sum += i * v;
	__syncwarp();
	sum += __shfl_sync(EVERY, sum, (lane + 1) % 32);
	u32 mask = __ballot_sync(EVERY, v & 8);
	if (v & 8) {
		sum ^= __shfl_sync(mask, sum, __ffs(mask) - 1);
		for (u32 left = mask; left; left &= left - 1) {
			u32 k = __ffs(left) - 1;
			sum += __shfl_sync(mask, sum, k);
		}
	} else {
		sum -= __popc(__match_any_sync(~mask, v & 0x30));
	}
	store<u32>(out, self(), sum);
}

// One of the threads that are there does what is to be done once.
KERNEL(elected)
{
	u32 v = in[self()] & 1;
	if (v) {
		u32 mask = __activemask(), leader;
		int is;
		asm volatile("{ .reg .pred p; elect.sync %0|p, %2; selp.s32 %1, 1, 0, p; }" : "=r"(leader), "=r"(is) : "r"(mask));
		if (is)
			atomicAdd(reinterpret_cast<u32 *>(out) + 1, __popc(mask));
		atomicAdd(reinterpret_cast<u32 *>(out), 1);
	}
}
