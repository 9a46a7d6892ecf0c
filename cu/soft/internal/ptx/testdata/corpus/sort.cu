#include "corpus.h"

// Bitonic sort of a block's 512 numbers.
KERNEL(bitonic)
{
	extern __shared__ u32 keys[];
	u32 size = 2 * blockDim.x, t = threadIdx.x;
	u64 first = (u64)size * blockIdx.x;
	keys[t] = load<u32>(in, first + t);
	keys[t + blockDim.x] = load<u32>(in, first + t + blockDim.x);
	for (u32 k = 2; k <= size; k *= 2)
		for (u32 j = k / 2; j > 0; j /= 2) {
			__syncthreads();
			u32 a = 2 * t - (t & (j - 1)), b = a + j;
			bool up = (a & k) == 0;
			if ((keys[a] > keys[b]) == up) {
				u32 v = keys[a];
				keys[a] = keys[b];
				keys[b] = v;
			}
		}
	__syncthreads();
	store<u32>(out, first + t, keys[t]);
	store<u32>(out, first + t + blockDim.x, keys[t + blockDim.x]);
}

static __device__ void quick(short *a, int low, int high)
{
	while (low < high) {
		short pivot = a[(low + high) / 2];
		int i = low, j = high;
		while (i <= j) {
			while (a[i] < pivot)
				i++;
			while (a[j] > pivot)
				j--;
			if (i <= j) {
				short v = a[i];
				a[i++] = a[j];
				a[j--] = v;
			}
		}
		if (j - low < high - i) {
			quick(a, low, j);
			low = i;
		} else {
			quick(a, i, high);
			high = j;
		}
	}
}

// Each thread sorts its own numbers, in local memory, with a function that calls itself.
KERNEL(quicksort)
{
	short a[64];
	for (int i = 0; i < 64; i++)
		a[i] = load<short>(in, self() * 64ull + i);
	quick(a, 0, 63);
	for (int i = 0; i < 64; i++)
		store<short>(out, self() * 64ull + i, a[i]);
}

// A block sorts bytes by counting them, and keeps equal ones in order.
KERNEL(radix)
{
	__shared__ u32 keys[2][256];
	__shared__ u32 zeros[256];
	u32 t = threadIdx.x;
	keys[0][t] = load<u32>(in, self());
	int from = 0;
	for (int bit = 0; bit < 32; bit++, from ^= 1) {
		__syncthreads();
		u32 key = keys[from][t];
		u32 zero = !(key >> bit & 1);
		zeros[t] = zero;
		__syncthreads();
		for (u32 s = 1; s < 256; s *= 2) {
			u32 v = t >= s ? zeros[t - s] : 0;
			__syncthreads();
			zeros[t] += v;
			__syncthreads();
		}
		u32 total = zeros[255], before = zeros[t] - zero;
		keys[from ^ 1][zero ? before : total + t - before] = key;
	}
	__syncthreads();
	store<u32>(out, self(), keys[from][t]);
}
