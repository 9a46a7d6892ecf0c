// The demo's pattern: the 32-bit integer at index i is
// (2i + 1337) ^ 0xDEADBEEF ^ salt. Package internal/pattern is the same in Go.
#include <stdint.h>

typedef unsigned long long u64;

static __device__ __forceinline__ uint32_t at(u64 i, uint32_t salt)
{
	return ((uint32_t)i * 2 + 1337) ^ 0xDEADBEEF ^ salt;
}

static __device__ __forceinline__ u64 thread(void)
{
	return (u64)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ __forceinline__ u64 threads(void)
{
	return (u64)gridDim.x * blockDim.x;
}

// Writes bytes bytes at dst, which is aligned to 16 and begins with the integer
// at index first. A partial integer at the end is written in part.
extern "C" __global__ void pattern_fill(uint8_t *dst, u64 bytes, u64 first, uint32_t salt)
{
	uint4 *quads = (uint4 *)dst;
	const u64 n = bytes / sizeof(uint4);
	for (u64 q = thread(); q < n; q += threads()) {
		const u64 i = first + 4 * q;
		quads[q] = make_uint4(at(i, salt), at(i + 1, salt), at(i + 2, salt), at(i + 3, salt));
	}
	for (u64 b = n * sizeof(uint4) + thread(); b < bytes; b += threads())
		dst[b] = at(first + b / 4, salt) >> (8 * (b % 4));
}

// What pattern_check found: how many integers are wrong, and the index of the
// first, which the caller sets to the largest number.
struct mismatch {
	u64 wrong;
	u64 index;
};

static __device__ void report(struct mismatch *m, u64 wrong, u64 index)
{
	if (wrong == 0)
		return;
	atomicAdd(&m->wrong, wrong);
	atomicMin(&m->index, index);
}

// Compares bytes bytes at src with what pattern_fill writes there. A partial
// integer at the end counts its bytes only.
extern "C" __global__ void pattern_check(const uint8_t *src, u64 bytes, u64 first, uint32_t salt, struct mismatch *m)
{
	const uint4 *quads = (const uint4 *)src;
	const u64 n = bytes / sizeof(uint4);
	u64 wrong = 0, index = ~0ull;
#pragma unroll 4
	for (u64 q = thread(); q < n; q += threads()) {
		const uint4 v = quads[q];
		const u64 i = first + 4 * q;
		const uint32_t got[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
		for (int k = 0; k < 4; k++)
			if (got[k] != at(i + k, salt)) {
				wrong++;
				index = i + k < index ? i + k : index;
			}
	}
	for (u64 w = n * 4 + thread(); 4 * w < bytes; w += threads()) {
		int bad = 0;
		for (u64 b = 4 * w; b < 4 * w + 4 && b < bytes; b++)
			bad |= src[b] != (uint8_t)(at(first + w, salt) >> (8 * (b % 4)));
		if (bad) {
			wrong++;
			index = first + w < index ? first + w : index;
		}
	}
	report(m, wrong, index);
}
