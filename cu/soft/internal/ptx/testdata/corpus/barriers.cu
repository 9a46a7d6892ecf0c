#include "corpus.h"

// Barriers that count, and those with numbers.
KERNEL(counted)
{
	u32 v = in[self()];
	int many = __syncthreads_count(v > 100), all = __syncthreads_and(v < 255), any = __syncthreads_or(v == 17);
	store<int>(out, self(), many | all << 16 | any << 17);
}

// Half of the block makes what the other takes.
KERNEL(producers)
{
	__shared__ u32 slot[64];
	u32 t = threadIdx.x % 64, sum = 0;
	if (threadIdx.x < 64) {
		for (u32 i = 0; i < 10; i++) {
			asm volatile("bar.sync 1, 128;" ::: "memory");
			slot[t] = load<u32>(in, self()) * (i + 1);
			asm volatile("bar.arrive 2, 128;" ::: "memory");
		}
	} else {
		for (u32 i = 0; i < 10; i++) {
			asm volatile("bar.arrive 1, 128;" ::: "memory");
			asm volatile("bar.sync 2, 128;" ::: "memory");
			sum = sum * 3 + slot[63 - t];
		}
		store<u32>(out, blockIdx.x * 64 + t, sum);
	}
}

// Barriers of parts of a block, by a number that is computed.
KERNEL(numbered)
{
	__shared__ u32 s[128];
	u32 group = threadIdx.x / 64;
	for (u32 i = 0; i <= group; i++) {
		s[threadIdx.x] = in[self()] + i;
		asm volatile("bar.sync %0, 64;" :: "r"(group + 3) : "memory");
		u32 v = s[threadIdx.x ^ 33];
		asm volatile("barrier.sync %0, 64;" :: "r"(group + 3) : "memory");
		s[threadIdx.x] = v;
	}
	__syncthreads();
	store<u32>(out, self(), s[127 - threadIdx.x]);
}

// Blocks that tell each other what they have made.
__device__ volatile u32 flag[64];

KERNEL(chain)
{
	u32 *o = reinterpret_cast<u32 *>(out);
	if (threadIdx.x == 0 && blockIdx.x > 0)
		while (!flag[blockIdx.x - 1])
			;
	__syncthreads();
	__threadfence();
	u32 before = blockIdx.x ? __ldcg(&o[(blockIdx.x - 1) * blockDim.x + threadIdx.x]) : 0;
	o[self()] = before + load<u32>(in, self());
	__threadfence();
	__syncthreads();
	if (threadIdx.x == 0)
		flag[blockIdx.x] = 1;
}
