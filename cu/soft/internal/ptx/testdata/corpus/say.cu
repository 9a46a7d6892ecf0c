#include "corpus.h"
#include <stdio.h>
#include <assert.h>

// Prints with everything that formats have.
KERNEL(printing)
{
	if (self() != 0)
		return;
	u32 v = load<u32>(in, 0);
	printf("plain\n");
	printf("%d %u %x %X %o %c %%\n", (int)v, v, v, v, v, 'a' + v % 26);
	printf("[%8d] [%-8d] [%08d] [%+d] [% d] [%#x] [%#o]\n", 123, 123, 123, 123, 123, 255, 8);
	printf("%lld %llu %llx %ld %lu\n", -1234567890123ll, 12345678901234567890ull, 0xfedcba9876543210ull, -5l, 6ul);
	printf("%hd %hu\n", (int)(short)70000, 65535);
	printf("%f %.3f %10.2f %-10.1f| %e %.2E %g %G\n", 1.5, 3.14159265, 2.71828, 9.99, 12345.678, 0.00012, 1e-10, 1e20);
	printf("%s %10s %-10s| %.3s %s\n", "word", "right", "left", "cut off", "");
	printf("%f %f %f %d\n", 1.0f / 0.0f, -1.0f / 0.0f, 0.0, 7);
	printf("%*d %.*f\n", 6, 42, 2, 1.23456);
	printf("%i %5c|%-5c|\n", -7, 'x', 'y');
	int written = printf("%d %d\n", 1, 2);
	store<int>(out, 0, written);
	store<int>(out, 1, printf("none\n"));
}

// Each thread of a warp prints one line.
KERNEL(printing_warp)
{
	printf("thread %d of %d: %u\n", threadIdx.x, blockDim.x, (u32)in[threadIdx.x]);
	out[threadIdx.x] = 1;
}

// What is asserted holds, here.
KERNEL(asserting)
{
	assert(n > 0);
	out[self()] = in[self()] + 1;
}

// And here it does not, for one thread.
KERNEL(asserting_wrong)
{
	assert(self() != 37 && "the thread is not 37");
	out[self()] = in[self()] + 1;
}

// Memory of the device's own heap.
KERNEL(heap)
{
	u32 count = in[self()] % 32 + 1;
	u32 *p = (u32 *)malloc(count * sizeof(u32));
	if (!p) {
		store<u32>(out, self(), 0xffffffff);
		return;
	}
	for (u32 i = 0; i < count; i++)
		p[i] = i * i;
	u32 sum = 0;
	for (u32 i = 0; i < count; i++)
		sum += p[i];
	free(p);
	u64 *q = new u64[4];
	q[3] = sum;
	store<u32>(out, self(), (u32)q[3]);
	delete[] q;
}

KERNEL(trapping)
{
	if (self() == 5)
		__trap();
	out[self()] = 1;
}
