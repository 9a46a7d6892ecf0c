#include "corpus.h"

// Counts bytes in shared memory, then adds to what all blocks have.
KERNEL(histogram)
{
	__shared__ u32 bins[256];
	bins[threadIdx.x] = 0;
	__syncthreads();
	for (u64 i = self(); i < n; i += all())
		atomicAdd(&bins[in[i]], 1);
	__syncthreads();
	atomicAdd(reinterpret_cast<u32 *>(out) + threadIdx.x, bins[threadIdx.x]);
}

// Every atomic whose result does not depend on the order.
KERNEL(atomics_int)
{
	u32 *o = reinterpret_cast<u32 *>(out);
	int *s = reinterpret_cast<int *>(out);
	u32 v = load<u32>(in, self());
	atomicAdd(&o[0], v);
	atomicSub(&o[1], v);
	atomicMin(&o[2], ~v);
	atomicMax(&o[3], v);
	atomicMin(&s[4], (int)v);
	atomicMax(&s[5], (int)v);
	atomicAnd(&o[6], v);
	atomicOr(&o[7], v & 0x11111111);
	atomicXor(&o[8], v);
	atomicInc(&o[9], 999);
	atomicDec(&o[10], 777);
	for (u32 old = o[11], seen;; old = seen) {
		seen = atomicCAS(&o[11], old, old * 1 + 3);
		if (seen == old)
			break;
	}
}

KERNEL(atomics_long)
{
	u64 *o = reinterpret_cast<u64 *>(out);
	long long *s = reinterpret_cast<long long *>(out);
	u64 v = load<u64>(in, self());
	__shared__ u64 here[4];
	if (threadIdx.x < 4)
		here[threadIdx.x] = 0;
	__syncthreads();
	atomicAdd(&here[0], v);
	atomicMax(&here[1], v);
	atomicXor(&here[2], v);
	atomicOr(&here[3], v & 0x0101010101010101ull);
	__syncthreads();
	if (threadIdx.x == 0) {
		atomicAdd(&o[0], here[0]);
		atomicMax(&o[1], here[1]);
		atomicXor(&o[2], here[2]);
		atomicOr(&o[3], here[3]);
	}
	atomicMin(&s[4], (long long)v);
	atomicMax(&s[5], (long long)v);
	atomicAnd(&o[6], v);
	atomicExch(&o[7], 5ull);
	u64 old = o[8], seen;
	while ((seen = atomicCAS(&o[8], old, old + (v & 0xff))) != old)
		old = seen;
}

// Sums of floats that are exact whatever the order.
KERNEL(atomics_float)
{
	float f = (float)(load<u8>(in, self()) & 63);
	atomicAdd(reinterpret_cast<float *>(out), f);
	atomicAdd(reinterpret_cast<double *>(out) + 1, (double)f * 0.5);
	__shared__ float here;
	if (threadIdx.x == 0)
		here = 0;
	__syncthreads();
	atomicAdd(&here, f);
	__syncthreads();
	if (threadIdx.x == 0)
		store<float>(out, 4 + blockIdx.x, here);
}

// One atomic for all of a warp that have something to add.
KERNEL(aggregated)
{
	u32 *count = reinterpret_cast<u32 *>(out);
	u64 i = self();
	u32 v = load<u32>(in, i);
	if (v % 3 == 0) {
		u32 mask = __activemask(), lane = threadIdx.x % 32;
		u32 leader = __ffs(mask) - 1, base = 0;
		if (lane == leader)
			base = atomicAdd(count, __popc(mask));
		base = __shfl_sync(mask, base, leader);
		u32 rank = base + __popc(mask & ((1u << lane) - 1));
		atomicAdd(count + 1, rank); // every rank once: the sum is known
	}
}

// A lock of compare and swap, and the last block to be done.
__device__ u32 lock, finished;
__device__ volatile u32 guarded;

KERNEL(locked)
{
	__shared__ bool last;
	if (threadIdx.x == 0) {
		while (atomicCAS(&lock, 0, 1) != 0)
			;
		__threadfence();
		guarded = guarded + blockIdx.x + 1;
		__threadfence();
		atomicExch(&lock, 0);
		last = atomicInc(&finished, gridDim.x - 1) == gridDim.x - 1;
	}
	__syncthreads();
	if (last && threadIdx.x < 4)
		store<u32>(out, threadIdx.x, guarded + threadIdx.x);
}
