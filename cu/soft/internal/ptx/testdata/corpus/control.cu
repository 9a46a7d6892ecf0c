#include "corpus.h"

static __device__ __noinline__ u32 pick(u32 what, u32 v)
{
	switch (what) {
	case 0: return v + 7;
	case 1: return v * 3;
	case 2: return v ^ 0x55;
	case 3: v >>= 3; // and on
	case 4: return v - 9;
	case 5: return ~v;
	case 6: return v << 5 | v >> 27;
	case 7: return v % 1000;
	case 8: return v / 17;
	case 9: return v & 0xf0f0;
	case 10: return __popc(v);
	case 11: return __clz(v);
	case 12: return v | 0x0f;
	case 13: return -v;
	case 40: return 40;
	case 41: return v + 41;
	}
	return 99;
}

// A switch with many cases, in a loop.
KERNEL(switches)
{
	u32 v = load<u32>(in, self());
	for (int i = 0; i < 20; i++)
		v = pick((v >> 3) % 18, v + i);
	store<u32>(out, self(), v);
}

// A machine of bytes: a switch whose order is in the data.
KERNEL(machine)
{
	u32 stack[8] = {1, 2, 3, 4, 5, 6, 7, 8};
	u32 top = 0, at = 0;
	const u8 *code = in + 32ull * self();
	for (u32 steps = 0; steps < 64 && at < 32; steps++) {
		u8 op = code[at++];
		u32 &a = stack[top & 7], &b = stack[(top + 7) & 7];
		switch (op & 7) {
		case 0: a += b; break;
		case 1: a *= b | 1; break;
		case 2: a ^= op; break;
		case 3: top++; break;
		case 4: top--; break;
		case 5: { u32 v = a; a = b; b = v; } break;
		case 6: at = (at + (op >> 3)) & 31; continue;
		case 7: if (a & 1) goto out; a = a >> 1 | 0x80000000; break;
		}
	}
out:
	u32 sum = top;
	for (int i = 0; i < 8; i++)
		sum = sum * 33 + stack[i];
	store<u32>(out, self(), sum);
}

// Threads end early, and others go on and meet.
KERNEL(early_exit)
{
	__shared__ u32 count;
	if (threadIdx.x == 0)
		count = 0;
	__syncthreads();
	u8 v = in[self()];
	if (v < 50)
		return;
	for (u32 i = 0; i < v; i++) {
		if (i * i > 6000u)
			break;
		if (i % 3 == 0)
			continue;
		atomicAdd(&count, i);
	}
	if (v > 200)
		return;
	__syncwarp(__activemask());
	store<u32>(out, self(), v * v);
	if (blockIdx.x % 2)
		asm volatile("exit;");
	out[n - 1 - self() / 64] = 7;
}

// Branches within branches within loops.
KERNEL(nested)
{
	u32 v = load<u32>(in, self()), sum = 0;
	for (u32 i = 0; i < (v & 15); i++) {
		if (v >> i & 1) {
			u32 k = i;
			do {
				sum += k * 3;
				if (k == 5)
					sum ^= v;
			} while (k-- > 0);
		} else if (v >> (i + 8) & 1) {
			sum = sum << 1 | sum >> 31;
		} else
			for (u32 j = 1; j < 20; j *= 2)
				sum += (v & j) ? j : i;
	}
	store<u32>(out, self(), sum);
}

// Arrays in local memory whose places are computed.
KERNEL(local_arrays)
{
	u32 a[32];
	u8 b[32];
	double d[4];
	for (int i = 0; i < 32; i++) {
		a[i] = load<u32>(in, self() + i);
		b[i] = a[i] & 31;
	}
	for (int i = 0; i < 4; i++)
		d[i] = i + 0.25;
	u32 at = self() & 31;
	for (int i = 0; i < 100; i++) {
		a[b[at]] += a[at] ^ i;
		at = (b[at] + a[at]) & 31;
		b[(at + 5) & 31] = a[at] >> 3 & 31;
		d[a[at] & 3] += d[at & 3] * 0.5;
	}
	u32 sum = 0;
	for (int i = 0; i < 32; i++)
		sum = sum * 7 + a[i] + b[i];
	store<u32>(out, 2 * self(), sum);
	store<u32>(out, 2 * self() + 1, (u32)(long long)(d[0] + d[1] + d[2] + d[3]));
}

// As many steps as a number needs; more work than threads.
KERNEL(collatz)
{
	for (u64 i = self(); i < n / 4; i += all()) {
		u64 v = load<u32>(in, i) % 10000 + 1;
		u32 steps = 0;
		while (v != 1) {
			v = v % 2 ? 3 * v + 1 : v / 2;
			steps++;
		}
		store<u32>(out, i, steps);
	}
}
