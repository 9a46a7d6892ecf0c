// Makes pools, allocates from them and destroys them, 25 times, in one thread and
// one context: driver 580.159.04 survives or dies by the order.
//
//	gcc -O1 -I/usr/local/cuda/include -o pools pools.c -L/usr/local/cuda/lib64/stubs -lcuda
//	./pools 0    # each pool's memory is freed, and waited for, before the pool is destroyed
//	./pools 16   # it is freed, and now and then not waited for
//	./pools 8    # now and then one allocation is freed after its pool was destroyed
//
// The numbers add up; 32 destroys the stream before the pool now and then, and 64
// allocates from the current pool as well, which 4 makes of the new one now and then.
// It ends with 0, with 3 and its last calls if it died, or with a signal.
#include <cuda.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char last[4096][64];
static unsigned calls;
static int habits;

static void died(int sig)
{
	printf("habits=%d signal=%d:", habits, sig);
	for (unsigned i = calls > 28 ? calls - 28 : 0; i < calls; i++)
		printf(" %s;", last[i % 4096]);
	printf("\n");
	fflush(stdout);
	_exit(3);
}

#define CALL(x)                                                              \
	do {                                                                 \
		snprintf(last[calls++ % 4096], 64, "%.50s", #x);             \
		CUresult r_ = (x);                                           \
		if (r_)                                                      \
			snprintf(last[calls++ % 4096], 64, "= %d", (int)r_); \
	} while (0)

static int now_and_then(int habit) { return (habits & habit) && rand() % 2; }

static void one_pool(CUdevice dev)
{
	CUstream s;
	CUmemPoolProps props;
	CUmemoryPool pool;
	CUdeviceptr mem[4] = {0}, other = 0;

	CALL(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	memset(&props, 0, sizeof props);
	props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
	props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	CALL(cuMemPoolCreate(&pool, &props));
	if (now_and_then(4))
		CALL(cuDeviceSetMemPool(dev, pool));
	for (int i = 0; i < 4; i++)
		CALL(cuMemAllocFromPoolAsync(&mem[i], 1 << 20, pool, rand() % 2 ? s : 0));
	if (habits & 64)
		CALL(cuMemAllocAsync(&other, 1 << 20, 0));
	if (rand() % 2)
		CALL(cuCtxSynchronize());
	int late = now_and_then(8);
	for (int i = 0; i < 4 - late; i++)
		CALL(cuMemFreeAsync(mem[i], rand() % 2 ? s : 0));
	if (!now_and_then(16))
		CALL(cuCtxSynchronize());
	int early = now_and_then(32);
	if (early)
		CALL(cuStreamDestroy(s));
	CALL(cuMemPoolDestroy(pool));
	if (late)
		CALL(cuMemFreeAsync(mem[3], 0));
	if (other)
		CALL(cuMemFreeAsync(other, 0));
	if (!now_and_then(16))
		CALL(cuCtxSynchronize());
	if (!early)
		CALL(cuStreamDestroy(s));
}

int main(int argc, char **argv)
{
	CUdevice dev;
	CUcontext ctx;

	habits = argc > 1 ? atoi(argv[1]) : 0;
	srand(getpid());
	signal(SIGSEGV, died);
	signal(SIGALRM, died); // it hung
	signal(SIGABRT, died);
	CALL(cuInit(0));
	CALL(cuDeviceGet(&dev, 0));
	CALL(cuDevicePrimaryCtxRetain(&ctx, dev));
	CALL(cuCtxSetCurrent(ctx));
	for (int i = 0; i < 25; i++) {
		alarm(12);
		one_pool(dev);
	}
	return 0;
}
