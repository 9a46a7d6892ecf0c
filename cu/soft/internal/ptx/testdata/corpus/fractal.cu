#include "corpus.h"

template <typename T> static __device__ u32 escape(T cx, T cy, u32 most)
{
	T x = 0, y = 0;
	u32 k = 0;
	while (k < most && x * x + y * y < (T)4) {
		T next = x * x - y * y + cx;
		y = 2 * x * y + cy;
		x = next;
		k++;
	}
	return k;
}

KERNEL(mandelbrot_double)
{
	u32 x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
	u32 width = gridDim.x * blockDim.x;
	store<u16>(out, y * width + x, escape<double>(-2.0 + x * (3.0 / 64), -1.5 + y * (3.0 / 64), 300));
}

KERNEL(mandelbrot_float)
{
	u32 x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
	u32 width = gridDim.x * blockDim.x;
	store<u16>(out, y * width + x, escape<float>(-2.0f + x * (3.0f / 64), -1.5f + y * (3.0f / 64), 300));
}

// Life: neighbours counted over a torus.
KERNEL(life)
{
	const int size = 64;
	int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
	int alive = 0;
	for (int dy = -1; dy <= 1; dy++)
		for (int dx = -1; dx <= 1; dx++)
			if (dx != 0 || dy != 0)
				alive += in[(y + dy + size) % size * size + (x + dx + size) % size] & 1;
	out[y * size + x] = alive == 3 || (alive == 2 && (in[y * size + x] & 1));
}

// Newton's method on a complex polynomial: which root, and after how many steps.
struct complex {
	double re, im;
	__device__ complex operator*(const complex &b) const { return {re * b.re - im * b.im, re * b.im + im * b.re}; }
	__device__ complex operator-(const complex &b) const { return {re - b.re, im - b.im}; }
	__device__ complex operator/(const complex &b) const
	{
		double d = b.re * b.re + b.im * b.im;
		return {(re * b.re + im * b.im) / d, (im * b.re - re * b.im) / d};
	}
};

KERNEL(newton)
{
	complex z = {small(load<u16>(in, 2 * self())) / 32.0, small(load<u16>(in, 2 * self() + 1)) / 32.0};
	const complex one = {1, 0}, three = {3, 0};
	int k = 0;
	for (; k < 40; k++) {
		complex f = z * z * z - one;
		if (f.re * f.re + f.im * f.im < 1e-20)
			break;
		z = z - f / (three * z * z);
	}
	store<double>(out, 2 * self(), z.re);
	store<double>(out, 2 * self() + 1, z.im + k);
}
