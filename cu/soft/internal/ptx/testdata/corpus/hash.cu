#include "corpus.h"

// CRC-32 of sixty-four bytes a thread, with a table that the block makes.
KERNEL(crc32)
{
	__shared__ u32 table[256];
	u32 c = threadIdx.x;
	for (int k = 0; k < 8; k++)
		c = c & 1 ? 0xedb88320u ^ c >> 1 : c >> 1;
	table[threadIdx.x] = c;
	__syncthreads();
	u32 crc = 0xffffffff;
	for (u32 i = 0; i < 64; i++)
		crc = table[(crc ^ in[64ull * self() + i]) & 0xff] ^ crc >> 8;
	store<u32>(out, self(), ~crc);
}

__constant__ u32 rounds[64] = {
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
	0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
	0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
	0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
	0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
	0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
	0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
	0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static __device__ u32 turn(u32 v, int n) { return v >> n | v << (32 - n); }

// One block of SHA-256 a thread.
KERNEL(sha256)
{
	u32 w[64];
	u32 h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
	u32 s[8];
	for (int i = 0; i < 16; i++)
		w[i] = __byte_perm(load<u32>(in, 16ull * self() + i), 0, 0x0123);
	for (int i = 16; i < 64; i++) {
		u32 a = w[i - 15], b = w[i - 2];
		w[i] = w[i - 16] + (turn(a, 7) ^ turn(a, 18) ^ a >> 3) + w[i - 7] + (turn(b, 17) ^ turn(b, 19) ^ b >> 10);
	}
	for (int i = 0; i < 8; i++)
		s[i] = h[i];
	for (int i = 0; i < 64; i++) {
		u32 one = turn(s[4], 6) ^ turn(s[4], 11) ^ turn(s[4], 25), choose = (s[4] & s[5]) ^ (~s[4] & s[6]);
		u32 t1 = s[7] + one + choose + rounds[i] + w[i];
		u32 zero = turn(s[0], 2) ^ turn(s[0], 13) ^ turn(s[0], 22), most = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
		for (int k = 7; k > 0; k--)
			s[k] = s[k - 1];
		s[4] += t1;
		s[0] = t1 + zero + most;
	}
	for (int i = 0; i < 8; i++)
		store<u32>(out, 8ull * self() + i, h[i] + s[i]);
}

static __device__ u64 rotate(u64 v, int n) { return v << n | v >> (64 - n); }

// A hash of multiplications and rotations of 64 bits.
KERNEL(hash64)
{
	const u64 p1 = 11400714785074694791ull, p2 = 14029467366897019727ull, p3 = 1609587929392839161ull;
	u64 lane[4] = {p1 + p2, p2, 0, 0 - p1};
	for (int i = 0; i < 8; i++)
		lane[i & 3] = rotate(lane[i & 3] + load<u64>(in, 8ull * self() + i) * p2, 31) * p1;
	u64 h = rotate(lane[0], 1) + rotate(lane[1], 7) + rotate(lane[2], 12) + rotate(lane[3], 18);
	h ^= h >> 33;
	h *= p2;
	h ^= h >> 29;
	h *= p3;
	h ^= h >> 32;
	store<u64>(out, self(), h);
	store<u64>(out, all() + self(), __umul64hi(h, p3));
}

// Numbers at random, as a generator with a state in memory makes them.
struct generator { u32 s[4]; };

static __device__ u32 draw(generator *g)
{
	u32 v = g->s[3];
	u32 s = g->s[0];
	g->s[3] = g->s[2];
	g->s[2] = g->s[1];
	g->s[1] = s;
	v ^= v << 11;
	v ^= v >> 8;
	return g->s[0] = v ^ s ^ s >> 19;
}

KERNEL(monte_carlo)
{
	generator g;
	for (int i = 0; i < 4; i++)
		g.s[i] = load<u32>(in, 4ull * self() + i) | 1;
	u32 hits = 0;
	for (int i = 0; i < 500; i++) {
		float x = draw(&g) * (1.0f / 4294967296.0f), y = draw(&g) * (1.0f / 4294967296.0f);
		if (x * x + y * y < 1.0f)
			hits++;
	}
	store<u32>(out, self(), hits);
}
