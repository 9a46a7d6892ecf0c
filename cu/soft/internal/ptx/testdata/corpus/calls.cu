#include "corpus.h"

static __device__ __noinline__ u32 fibonacci(u32 n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }

KERNEL(recursion) { store<u32>(out, self(), fibonacci(in[self()] % 12)); }

static __device__ __noinline__ u32 odd(u32 n);
static __device__ __noinline__ u32 even(u32 n) { return n == 0 ? 1 : odd(n - 1); }
static __device__ __noinline__ u32 odd(u32 n) { return n == 0 ? 0 : even(n - 1) * 3; }

static __device__ __noinline__ u32 ackermann(u32 m, u32 n)
{
	if (m == 0)
		return n + 1;
	return ackermann(m - 1, n == 0 ? 1 : ackermann(m, n - 1));
}

KERNEL(mutual)
{
	store<u32>(out, 2 * self(), even(in[self()] % 9));
	store<u32>(out, 2 * self() + 1, ackermann(in[self()] % 3, in[self()] % 4));
}

typedef u32 (*operation)(u32, u32);

static __device__ __noinline__ u32 plus(u32 a, u32 b) { return a + b; }
static __device__ __noinline__ u32 minus(u32 a, u32 b) { return a - b; }
static __device__ __noinline__ u32 times(u32 a, u32 b) { return a * b; }
static __device__ __noinline__ u32 over(u32 a, u32 b) { return a / (b | 1); }

__device__ operation operations[4] = {plus, minus, times, over};
__constant__ operation again[2] = {times, minus};

// Functions called through a table of pointers, which threads of a warp take apart.
KERNEL(pointers)
{
	u32 a = load<u32>(in, 2 * self()), b = load<u32>(in, 2 * self() + 1);
	u32 v = operations[a % 4](a, b);
	v = again[b % 2](v, a);
	operation f = a & 8 ? plus : over;
	store<u32>(out, self(), f(v, b));
}

struct shape {
	u32 side;
	__device__ shape(u32 s) : side(s) {}
	__device__ virtual u32 area() const = 0;
	__device__ virtual u32 corners() const { return side; }
};

struct square : shape {
	__device__ square(u32 s) : shape(s) {}
	__device__ u32 area() const override { return side * side; }
};

struct box : shape {
	u32 other;
	__device__ box(u32 a, u32 b) : shape(a), other(b) {}
	__device__ u32 area() const override { return side * other; }
	__device__ u32 corners() const override { return 4 + other; }
};

static __device__ __noinline__ u32 measure(const shape *s) { return s->area() * 31 + s->corners(); }

KERNEL(virtuals)
{
	u32 v = load<u32>(in, self());
	square a(v & 0xff);
	box b(v >> 8 & 0xff, v >> 16 & 0xff);
	const shape *s = v >> 24 & 1 ? static_cast<const shape *>(&a) : &b;
	store<u32>(out, self(), measure(s) + measure(&a));
}

struct record {
	u8 tag;
	short small;
	double value;
	float vector[3];
	u64 id;
};

static __device__ __noinline__ record change(record r, int by)
{
	r.tag ^= by;
	r.small -= by;
	r.value = r.value * 0.5 + by;
	for (int i = 0; i < 3; i++)
		r.vector[i] += (float)(i * by);
	r.id = r.id * 2862933555777941757ull + by;
	return r;
}

static __device__ __noinline__ float3 cross(float3 a, float3 b)
{
	return make_float3(a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x);
}

// Structures as parameters and results.
KERNEL(structs)
{
	u32 v = load<u32>(in, self());
	record r = {(u8)v, (short)(v >> 8), (double)v, {small(v), small(v >> 8), small(v >> 16)}, v};
	for (int i = 0; i < 3; i++)
		r = change(r, (int)(v >> 8 * i & 0x7f));
	float3 c = cross(make_float3(r.vector[0], r.vector[1], r.vector[2]), make_float3(1, 2, 3));
	u64 at = 4ull * self();
	store<u64>(out, at, r.id);
	store<double>(out, at + 1, r.value);
	store<u32>(out, 2 * (at + 2), r.tag | (u32)(u16)r.small << 16);
	store<float>(out, 2 * (at + 2) + 1, c.x);
	store<float>(out, 2 * (at + 3), c.y);
	store<float>(out, 2 * (at + 3) + 1, c.z);
}

template <typename F> static __device__ void each(u32 count, F f)
{
	for (u32 i = 0; i < count; i++)
		f(i);
}

// A function that is given as what it captures.
KERNEL(lambdas)
{
	u32 sum = 1;
	const u8 *from = in + self();
	each(16, [&](u32 i) { sum = sum * 31 + from[i * 8]; });
	each(sum % 7, [&sum](u32 i) { sum ^= i << 8; });
	store<u32>(out, self(), sum);
}
