#include "corpus.h"

// Sums: each block of its part, in shared memory, halving.
KERNEL(reduce_shared)
{
	__shared__ u32 part[256];
	u32 sum = 0;
	for (u64 i = self(); i < n / 4; i += all())
		sum += load<u32>(in, i);
	part[threadIdx.x] = sum;
	__syncthreads();
	for (u32 s = blockDim.x / 2; s > 0; s >>= 1) {
		if (threadIdx.x < s)
			part[threadIdx.x] += part[threadIdx.x + s];
		__syncthreads();
	}
	if (threadIdx.x == 0)
		store<u32>(out, blockIdx.x, part[0]);
}

static __device__ u64 warpSum(u64 v)
{
	for (int s = 16; s > 0; s >>= 1)
		v += __shfl_down_sync(0xffffffff, v, s);
	return v;
}

// Sums with shuffles: of warps, then of the warps' sums.
KERNEL(reduce_shuffle)
{
	__shared__ u64 part[32];
	u64 sum = 0;
	for (u64 i = self(); i < n / 8; i += all())
		sum += load<u64>(in, i);
	sum = warpSum(sum);
	if (threadIdx.x % 32 == 0)
		part[threadIdx.x / 32] = sum;
	__syncthreads();
	if (threadIdx.x < 32) {
		sum = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0;
		sum = warpSum(sum);
		if (threadIdx.x == 0)
			store<u64>(out, blockIdx.x, sum);
	}
}

// The largest float of a block and where it is, with shuffles of both.
KERNEL(reduce_argmax)
{
	u32 i = self();
	float best = small(load<u16>(in, i));
	int at = (int)i;
	for (int s = 16; s > 0; s >>= 1) {
		float other = __shfl_xor_sync(0xffffffff, best, s);
		int where = __shfl_xor_sync(0xffffffff, at, s);
		if (other > best || (other == best && where < at)) {
			best = other;
			at = where;
		}
	}
	if (threadIdx.x % 32 == 0) {
		store<float>(out, i / 32 * 2, best);
		store<int>(out, i / 32 * 2 + 1, at);
	}
}

// Prefix sums of a block: up and down a tree in shared memory.
KERNEL(scan_tree)
{
	__shared__ u32 tree[512];
	u32 t = threadIdx.x;
	u64 first = 512ull * blockIdx.x;
	tree[2 * t] = load<u32>(in, first + 2 * t);
	tree[2 * t + 1] = load<u32>(in, first + 2 * t + 1);
	u32 step = 1;
	for (u32 d = 256; d > 0; d >>= 1) {
		__syncthreads();
		if (t < d)
			tree[step * (2 * t + 2) - 1] += tree[step * (2 * t + 1) - 1];
		step *= 2;
	}
	if (t == 0)
		tree[511] = 0;
	for (u32 d = 1; d < 512; d *= 2) {
		step >>= 1;
		__syncthreads();
		if (t < d) {
			u32 a = step * (2 * t + 1) - 1, b = step * (2 * t + 2) - 1;
			u32 v = tree[a];
			tree[a] = tree[b];
			tree[b] += v;
		}
	}
	__syncthreads();
	store<u32>(out, first + 2 * t, tree[2 * t]);
	store<u32>(out, first + 2 * t + 1, tree[2 * t + 1]);
}

// Prefix sums with shuffles.
KERNEL(scan_shuffle)
{
	__shared__ int sums[32];
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	int v = load<int>(in, self());
	for (int s = 1; s < 32; s *= 2) {
		int w = __shfl_up_sync(0xffffffff, v, s);
		if (lane >= s)
			v += w;
	}
	if (lane == 31)
		sums[warp] = v;
	__syncthreads();
	if (warp == 0) {
		int w = lane < (int)blockDim.x / 32 ? sums[lane] : 0;
		for (int s = 1; s < 32; s *= 2) {
			int x = __shfl_up_sync(0xffffffff, w, s);
			if (lane >= s)
				w += x;
		}
		sums[lane] = w;
	}
	__syncthreads();
	if (warp > 0)
		v += sums[warp - 1];
	store<int>(out, self(), v);
}
