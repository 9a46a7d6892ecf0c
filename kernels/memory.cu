// What is done to memory as bytes. Addresses are aligned to 16, but for those
// of fill_bytes.
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

// Sets bytes bytes at dst to value: what a member of a ring does.
extern "C" __global__ void fill_bytes(uint8_t *dst, u64 bytes, uint8_t value)
{
	for (u64 b = thread(); b < bytes; b += threads())
		dst[b] = value;
}

// Copies bytes bytes, which do not overlap.
extern "C" __global__ void copy_bytes(uint8_t *__restrict__ dst, const uint8_t *__restrict__ src, u64 bytes)
{
	const u64 n = bytes / sizeof(uint4);
	for (u64 q = thread(); q < n; q += threads())
		((uint4 *)dst)[q] = ((const uint4 *)src)[q];
	for (u64 b = n * sizeof(uint4) + thread(); b < bytes; b += threads())
		dst[b] = src[b];
}

// The finaliser of splitmix64.
static __device__ __forceinline__ u64 mix(u64 x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

// Adds the checksum of bytes bytes to *sum: the sum, modulo 2^64, of
// mix(word ^ mix(i + 1)) over the 64-bit words, little-endian, the last one
// filled up with zeros. The parts of a block are added up in shared memory.
extern "C" __global__ void checksum(const uint8_t *src, u64 bytes, u64 *sum)
{
	__shared__ u64 part;
	if (threadIdx.x == 0)
		part = 0;
	__syncthreads();
	const u64 n = bytes / 8;
	u64 mine = 0;
	for (u64 w = thread(); w < n; w += threads())
		mine += mix(((const u64 *)src)[w] ^ mix(w + 1));
	if (n * 8 < bytes && thread() == 0) {
		u64 last = 0;
		for (u64 b = n * 8; b < bytes; b++)
			last |= (u64)src[b] << (8 * (b - n * 8));
		mine += mix(last ^ mix(n + 1));
	}
	atomicAdd(&part, mine);
	__syncthreads();
	if (threadIdx.x == 0)
		atomicAdd(sum, part);
}
