#include "corpus.h"

// Variables with all sorts of beginnings.
struct node { int value; const node *next; const char *name; };

__device__ int counters[8] = {1, -2, 3};
__device__ double table[3][4] = {{1.5, 2.5}, {3.25}, {-4, 5, 6, 7}};
__constant__ u16 shorts[5] = {1, 2, 0xffff};
__constant__ float scale = 0.75f;
__device__ node last = {30, 0, "last"};
__device__ node middle = {20, &last, "middle"};
__constant__ node first = {10, &middle, "first"};
__device__ int *at = &counters[2];
__device__ u64 where[2] = {7, 9};
__constant__ struct { u8 a; int b; u64 *c; float d; } mixed = {3, -5, &where[1], 2.5f};
__device__ u8 bytes[16] = "bytes and more";
__device__ volatile u32 launches;
__shared__ u32 fixed[16];
extern __shared__ __align__(16) u8 dynamic[];

KERNEL(initialised)
{
	u32 i = self();
	int sum = 0;
	for (const node *p = &first; p; p = p->next) {
		sum = sum * 3 + p->value;
		for (const char *s = p->name; *s; s++)
			sum += *s;
	}
	sum += *at + shorts[i % 5] + bytes[i & 15] + (int)(scale * 100) + mixed.a + mixed.b + (int)*mixed.c + counters[i & 7];
	store<int>(out, 4 * i, sum);
	store<float>(out, 4 * i + 1, scale * mixed.d);
	store<double>(out, 2 * i + 1, table[i % 3][i & 3]);
}

// Shared memory of a length that the launch says, taken apart by hand.
KERNEL(dynamic_shared)
{
	u32 t = threadIdx.x;
	double *d = reinterpret_cast<double *>(dynamic);
	u32 *w = reinterpret_cast<u32 *>(d + blockDim.x);
	u8 *b = reinterpret_cast<u8 *>(w + blockDim.x);
	if (t < 16)
		fixed[t] = load<u32>(in, t);
	d[t] = load<int>(in, self()) * 0.125;
	w[t] = load<u32>(in, self());
	b[t] = in[self()];
	__syncthreads();
	u32 k = blockDim.x - 1 - t;
	store<double>(out, self(), d[k] + w[k] % 1000 + b[k] + fixed[k & 15]);
}

// Pointers that may be to anything.
static __device__ __noinline__ u32 take(const u32 *p, u32 count)
{
	u32 sum = 0;
	for (u32 i = 0; i < count; i++)
		sum = sum * 5 + p[i];
	return sum;
}

__constant__ u32 consts[4] = {5, 6, 7, 8};
__device__ u32 devs[4] = {50, 60, 70, 80};

KERNEL(generic_pointers)
{
	__shared__ u32 s[4];
	u32 l[4];
	if (threadIdx.x < 4)
		s[threadIdx.x] = threadIdx.x + 100;
	__syncthreads();
	for (int i = 0; i < 4; i++)
		l[i] = load<u32>(in, self()) + i;
	const u32 *p[5] = {s, l, consts, devs, reinterpret_cast<const u32 *>(in) + 8};
	u32 sum = 0;
	for (u32 i = 0; i < 5; i++)
		sum = sum * 3 + take(p[(self() + i) % 5], 4);
	sum += __isShared(s) | __isLocal(l) << 1 | __isGlobal(in) << 2 | __isShared(in) << 3 | __isConstant(consts) << 4;
	store<u32>(out, self(), sum);
}

// What the special registers say.
KERNEL(special)
{
	u32 lanes, lt, le, gt, ge, eq, warps, nwarps, dyn;
	asm("mov.u32 %0, %%laneid;" : "=r"(lanes));
	asm("mov.u32 %0, %%lanemask_lt;" : "=r"(lt));
	asm("mov.u32 %0, %%lanemask_le;" : "=r"(le));
	asm("mov.u32 %0, %%lanemask_gt;" : "=r"(gt));
	asm("mov.u32 %0, %%lanemask_ge;" : "=r"(ge));
	asm("mov.u32 %0, %%lanemask_eq;" : "=r"(eq));
	asm volatile("mov.u32 %0, %%warpid;" : "=r"(warps));
	asm volatile("mov.u32 %0, %%nwarpid;" : "=r"(nwarps));
	asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(dyn));
	u32 thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
	u32 block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
	u32 i = block * blockDim.x * blockDim.y * blockDim.z + thread;
	u32 *o = reinterpret_cast<u32 *>(out) + 8ull * i;
	o[0] = lanes;
	o[1] = lt ^ le << 1;
	o[2] = gt ^ ge >> 1;
	o[3] = eq + warpSize;
	o[4] = dyn;
	o[5] = thread << 16 | block;
	long long a = clock64();
	__nanosleep(100);
	long long b = clock64();
	o[6] = b >= a;
	o[7] = warps < nwarps || nwarps == 0;
}
