#include "corpus.h"

#define TILE 16

// C = A B, tile by tile.
KERNEL(matmul)
{
	__shared__ float a[TILE][TILE], b[TILE][TILE];
	const int size = 64;
	int x = threadIdx.x, y = threadIdx.y;
	int row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
	float sum = 0;
	for (int k = 0; k < size; k += TILE) {
		a[y][x] = small(load<u16>(in, row * size + k + x));
		b[y][x] = small(load<u16>(in, size * size + (k + y) * size + column));
		__syncthreads();
		for (int i = 0; i < TILE; i++)
			sum += a[y][i] * b[i][x];
		__syncthreads();
	}
	store<float>(out, row * size + column, sum);
}

// Transposes through shared memory whose rows are one longer.
KERNEL(transpose)
{
	__shared__ u32 tile[32][33];
	const u32 size = 128;
	u32 x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
	for (u32 j = 0; j < 32; j += 8)
		tile[threadIdx.y + j][threadIdx.x] = load<u32>(in, (y + j) * size + x);
	__syncthreads();
	x = blockIdx.y * 32 + threadIdx.x;
	y = blockIdx.x * 32 + threadIdx.y;
	for (u32 j = 0; j < 32; j += 8)
		store<u32>(out, (y + j) * size + x, tile[threadIdx.x][threadIdx.y + j]);
}

// What bodies do to each other, with nothing that is approximate.
KERNEL(nbody)
{
	__shared__ float4 body[64];
	u32 i = self();
	const u16 *words = reinterpret_cast<const u16 *>(in);
	float4 me = make_float4(small(words[4 * i]), small(words[4 * i + 1]), small(words[4 * i + 2]), 1 + in[i]);
	float3 force = make_float3(0, 0, 0);
	for (u32 tile = 0; tile < gridDim.x; tile++) {
		u32 k = tile * blockDim.x + threadIdx.x;
		body[threadIdx.x] = make_float4(small(words[4 * k]), small(words[4 * k + 1]), small(words[4 * k + 2]), 1 + in[k]);
		__syncthreads();
		for (u32 j = 0; j < blockDim.x; j++) {
			float dx = body[j].x - me.x, dy = body[j].y - me.y, dz = body[j].z - me.z;
			float d = dx * dx + dy * dy + dz * dz + 0.01f;
			float f = body[j].w / (d * sqrtf(d));
			force.x += dx * f;
			force.y += dy * f;
			force.z += dz * f;
		}
		__syncthreads();
	}
	store<float4>(out, i, make_float4(force.x, force.y, force.z, me.w));
}

// Doubles, with quotients and roots.
KERNEL(jacobi)
{
	__shared__ double now[66], next[66];
	u32 t = threadIdx.x;
	now[t + 1] = load<int>(in, self()) / 3.0;
	if (t == 0)
		now[0] = now[65] = 1.5;
	__syncthreads();
	for (int k = 0; k < 50; k++) {
		next[t + 1] = (now[t] + now[t + 2]) / 2.1 + sqrt(fabs(now[t + 1])) * 1e-3;
		__syncthreads();
		now[t + 1] = next[t + 1];
		__syncthreads();
	}
	store<double>(out, self(), now[t + 1]);
}

// Vectors of every shape that loads and stores have.
KERNEL(vectors)
{
	u32 i = self();
	uchar4 b = load<uchar4>(in, i);
	uchar2 c = load<uchar2>(in, i);
	short2 s = load<short2>(in, i);
	ushort4 w = load<ushort4>(in, i);
	int2 p = load<int2>(in, i);
	int4 q = load<int4>(in, i);
	longlong2 l = load<longlong2>(in, i);
	double2 d = make_double2((double)l.x, (double)l.y);
	u64 at = 64ull * i / 16;
	store<int4>(out, at, make_int4(q.w + b.x, q.z + b.y, q.y + b.z, q.x + b.w));
	store<double2>(out, at + 1, make_double2(d.y + c.x, d.x + c.y));
	store<longlong2>(out, at + 2, make_longlong2(l.y ^ s.x, l.x ^ s.y));
	store<short4>(out, 2 * (at + 3), make_short4(w.w, w.z, w.y, w.x));
	store<uchar4>(out, 4 * (at + 3) + 2, make_uchar4(b.w, b.z, b.y, b.x));
	store<char2>(out, 8 * (at + 3) + 6, make_char2(p.x, p.y));
	store<signed char>(out, 16 * (at + 3) + 14, (signed char)(s.x >> 4));
	store<u8>(out, 16 * (at + 3) + 15, c.x);
}
