// arch: compute_80
#include "corpus.h"

static __device__ u32 length(const char *s)
{
	u32 n = 0;
	while (s[n])
		n++;
	return n;
}

static __device__ int compare(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return (int)(u8)*a - (int)(u8)*b;
}

static __device__ char *decimal(char *to, long long v)
{
	char digits[24];
	int k = 0;
	bool minus = v < 0;
	u64 m = minus ? -(u64)v : v;
	do
		digits[k++] = '0' + m % 10;
	while (m /= 10);
	if (minus)
		*to++ = '-';
	while (k > 0)
		*to++ = digits[--k];
	*to = 0;
	return to;
}

__constant__ const char *words[] = {"zero", "one", "two", "three", "four", "a much longer word than the others", ""};
__device__ const char *names[] = {"alpha", "beta", "gamma", "delta"};

// Writes lines of words and numbers.
KERNEL(lines)
{
	char line[96];
	char *p = line;
	u32 v = load<u32>(in, self());
	for (const char *s = words[v % 7]; *s; s++)
		*p++ = *s;
	*p++ = ' ';
	p = decimal(p, (int)v);
	*p++ = ' ';
	p = decimal(p, (long long)v * v - 1234567890123ll);
	*p++ = '|';
	for (const char *s = names[v >> 8 & 3]; *s; s++)
		*p++ = *s >= 'a' && *s <= 'z' ? *s - 32 : *s;
	*p = 0;
	u32 k = length(line);
	for (u32 i = 0; i <= k; i++)
		out[96ull * self() + i] = line[i];
	out[96ull * self() + 95] = compare(words[v % 7], words[v >> 3 & 3]) + k;
}

// Letters turned around, in place, in shared memory.
KERNEL(reverse)
{
	__shared__ char s[128];
	u32 t = threadIdx.x;
	s[t] = 'a' + in[self()] % 26;
	__syncthreads();
	char mine = s[t], other = s[127 - t];
	__syncthreads();
	if (t < 64) {
		s[t] = other;
		s[127 - t] = mine;
	}
	__syncthreads();
	out[self()] = s[t];
}

// Packed structures, and memcpy and memset of what is not aligned.
struct __attribute__((packed)) odd { u8 a; u32 b; u16 c; u64 d; };

KERNEL(unaligned)
{
	odd o;
	memcpy(&o, in + 15ull * self(), sizeof(o));
	o.b += o.a;
	o.d ^= o.c;
	o.c = (u16)(o.d >> 7);
	memset(out + 16ull * self(), o.a, 16);
	memcpy(out + 16ull * self(), &o, sizeof(o));
}

// Finds a pattern, and counts where.
KERNEL(search)
{
	u32 found = 0;
	for (u64 i = self(); i + 2 < n; i += all())
		if ((in[i] & 7) == 3 && (in[i + 1] & 3) == 1 && in[i + 2] != 'x')
			found++;
	u32 last = __reduce_add_sync(0xffffffff, found);
	if (threadIdx.x % 32 == 0)
		store<u32>(out, self() / 32, last);
}
