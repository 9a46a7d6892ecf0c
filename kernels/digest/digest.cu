// The digest gpufd-d1, which doc.go says in words.
#include <stdint.h>

typedef unsigned long long u64;

static __device__ __forceinline__ u64 thread(void)
{
	return (u64)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ __forceinline__ u64 threads(void)
{
	return (u64)gridDim.x * blockDim.x;
}

// The finaliser of splitmix64.
static __device__ __forceinline__ u64 mix(u64 x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

// The sums of a thread.
struct sums {
	u64 a, b;

	// Adds the word at index i of the data.
	__device__ __forceinline__ void add(u64 word, u64 i)
	{
		const u64 key = (i + 1) * 0x9e3779b97f4a7c15ull;
		const u64 x = mix(word ^ key);
		a += x;
		b += x * (key | 1);
	}
};

// Adds the sums of bytes bytes at src, which is aligned to 16 and begins with the
// word at index first, to the two at result. The parts of a block are added up in
// shared memory.
extern "C" __global__ void digest(const uint8_t *src, u64 bytes, u64 first, u64 *result)
{
	__shared__ u64 part[2];
	if (threadIdx.x == 0)
		part[0] = part[1] = 0;
	__syncthreads();
	sums s = {0, 0};
	const u64 n = bytes / sizeof(ulonglong2);
#pragma unroll 4
	for (u64 q = thread(); q < n; q += threads()) {
		const ulonglong2 words = ((const ulonglong2 *)src)[q];
		s.add(words.x, first + 2 * q);
		s.add(words.y, first + 2 * q + 1);
	}
	if (thread() == 0) {
		u64 last[2] = {0, 0};
		const u64 rest = bytes % sizeof(last);
		for (u64 b = 0; b < rest; b++)
			last[b / 8] |= (u64)src[n * sizeof(last) + b] << (8 * (b % 8));
		if (rest > 0)
			s.add(last[0], first + 2 * n);
		if (rest > 8)
			s.add(last[1], first + 2 * n + 1);
	}
	atomicAdd(&part[0], s.a);
	atomicAdd(&part[1], s.b);
	__syncthreads();
	if (threadIdx.x == 0) {
		atomicAdd(&result[0], part[0]);
		atomicAdd(&result[1], part[1]);
	}
}
