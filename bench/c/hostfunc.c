// Loses all contexts of a process while a host function waits in one of them, behind a
// value that nobody writes; then destroys the contexts and ends, as the child "host
// function in a lost context" of cu's tests does, call for call.
//
//	gcc -O1 -pthread -I/usr/local/cuda/include -o hostfunc hostfunc.c -L/usr/local/cuda/lib64/stubs -lcuda
//	./hostfunc 0 300      # 300 processes, eight at once
//	./hostfunc 0 300 3    # three at once
//
// The first number is the sum of what differs from that child:
//
//	1     no host function is queued
//	2     nothing is queued at all, neither function nor wait
//	4     the context of the host function is destroyed first, not last
//	8     the context that the failure began in is not destroyed
//	16    the context of the host function is not destroyed
//	32    the process returns from main, and libcuda's exit handlers run; else _exit
//	64    the process stays for 100 ms before it ends
//	128   another thread destroys the contexts
//	256   nothing fails: the value is written, and the function called
//	512   cuCtxSynchronize notices the failure, not cuStreamQuery
//	1024  the stream is destroyed before the contexts
//	2048  the memory is neither unmapped nor released
//	4096  the process waits 20 ms between the failure and the end of the contexts
//
// It prints a line for each process that died or failed, with the last call that it
// began, and how many there were; it ends with 3 if there were any. Where nothing has
// failed the function must be called, and else it must not.
#define _GNU_SOURCE
#include <cuda.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { AT_ONCE = 8 }; /* processes, unless the third argument says otherwise */

// What a process leaves behind for its parent.
static struct seen {
	pid_t pid;
	char call[80]; // the last that it began
	int called;    // how often the host function was
	int lost;      // the result that told of the failure
	int refused;   // calls after it that failed
} *shared, *seen;

static int habits;

static int habit(int h) { return habits & h; }

#define BEGIN(x) snprintf(seen->call, sizeof seen->call, "%.70s", #x)

// CALL makes a call that has to succeed.
#define CALL(x)                                                                 \
	do {                                                                    \
		BEGIN(x);                                                       \
		CUresult r_ = (x);                                              \
		if (r_) {                                                       \
			snprintf(seen->call, sizeof seen->call, "%.60s = %d", #x, (int)r_); \
			_exit(2);                                               \
		}                                                               \
	} while (0)

// TRY makes one after the failure.
#define TRY(x) (BEGIN(x), seen->refused += (x) != CUDA_SUCCESS)

static void CUDA_CB host_function(void *id)
{
	(void)id;
	__atomic_add_fetch(&seen->called, 1, __ATOMIC_SEQ_CST);
}

static CUdevice dev;
static CUcontext ctx, victim;
static CUstream stream;
static CUdeviceptr word, at;
static size_t size;

static void create(CUcontext *c)
{
	CUcontext popped;
#if CUDA_VERSION >= 13000
	CALL(cuCtxCreate(c, NULL, 0, dev));
#else
	CALL(cuCtxCreate(c, 0, dev));
#endif
	CALL(cuCtxPopCurrent(&popped));
}

// queue has the stream wait for ever, and the function for the stream.
static void queue(void)
{
	CALL(cuCtxSetCurrent(ctx));
	CALL(cuMemAlloc(&word, 4));
	CALL(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CALL(cuMemsetD32Async(word, 0, 1, 0));
	CALL(cuCtxSynchronize());
	if (habit(2))
		return;
	CALL(cuStreamWaitValue32(stream, word, 1, CU_STREAM_WAIT_VALUE_EQ));
	if (!habit(1))
		CALL(cuLaunchHostFunc(stream, host_function, (void *)1));
}

// fail writes a value through a mapping that is read-only, and sees that it failed.
static void fail(CUmemGenericAllocationHandle *h)
{
	CUmemAllocationProp prop;
	CUmemAccessDesc access;
	CUresult r = CUDA_ERROR_NOT_READY;
	const char *text;

	memset(&prop, 0, sizeof prop);
	prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	prop.location.id = dev;
	memset(&access, 0, sizeof access);
	access.location = prop.location;
	access.flags = habit(256) ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
	CALL(cuMemGetAllocationGranularity(&size, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	CALL(cuMemCreate(h, size, &prop, 0));
	CALL(cuMemAddressReserve(&at, size, 0, 0, 0));
	CALL(cuMemMap(at, size, 0, *h, 0));
	CALL(cuMemSetAccess(at, size, &access, 1));
	CALL(cuCtxSetCurrent(victim));
	CALL(cuStreamWriteValue32(0, at, 1, 0));
	if (habit(512)) {
		BEGIN(cuCtxSynchronize());
		r = cuCtxSynchronize();
	}
	CALL(cuCtxSetCurrent(ctx));
	if (habit(256))
		CALL(cuStreamWriteValue32(0, word, 1, 0));
	BEGIN(cuStreamQuery(stream));
	while (r == CUDA_ERROR_NOT_READY || (habit(2) && !habit(256) && r == CUDA_SUCCESS)) {
		cuCtxSetCurrent(ctx);
		r = cuStreamQuery(stream);
	}
	seen->lost = (int)r;
	cuGetErrorString(r, &text);
}

static void *destroy(void *unused)
{
	if (habit(1024))
		TRY(cuStreamDestroy(stream));
	if (habit(4) && !habit(16))
		TRY(cuCtxDestroy(ctx));
	if (!habit(8))
		TRY(cuCtxDestroy(victim));
	if (!habit(4) && !habit(16))
		TRY(cuCtxDestroy(ctx));
	return unused;
}

// process is what one process does.
static void process(void)
{
	CUmemGenericAllocationHandle h;
	pthread_t other;

	alarm(30); // it hung
	CALL(cuInit(0));
	CALL(cuDeviceGet(&dev, 0));
	create(&ctx);
	create(&victim);
	queue();
	fail(&h);
	if (habit(4096))
		usleep(20000);
	if (habit(128)) {
		pthread_create(&other, NULL, destroy, NULL);
		pthread_join(other, NULL);
	} else {
		destroy(NULL);
	}
	if (!habit(2048)) {
		TRY(cuMemUnmap(at, size));
		TRY(cuMemAddressFree(at, size));
		TRY(cuMemRelease(h));
	}
	snprintf(seen->call, sizeof seen->call, "none: it was about to end");
	if (habit(64))
		usleep(100000);
	if (!habit(32))
		_exit(0);
	exit(0);
}

// ended says how a process did, and returns whether it was bad.
static int ended(const struct seen *s, int status)
{
	int want_called = habit(256) && !habit(1) && !habit(2), want_lost = habit(256) ? 0 : 719;
	if (status == 0 && s->called == want_called && s->lost == want_lost)
		return 0;
	printf("habits=%d pid=%d %s=%d called=%d lost=%d refused=%d last: %s\n", habits, (int)s->pid,
	       WIFSIGNALED(status) ? "signal" : "exit", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status),
	       s->called, s->lost, s->refused, s->call);
	fflush(stdout);
	return 1;
}

static void start(struct seen *s)
{
	memset(s, 0, sizeof *s);
	pid_t pid = fork(); // the parent never calls the driver
	if (pid == 0) {
		seen = s;
		process();
	}
	s->pid = pid;
}

int main(int argc, char **argv)
{
	int runs = argc > 2 ? atoi(argv[2]) : 1, at_once = argc > 3 ? atoi(argv[3]) : AT_ONCE, started = 0, bad = 0;

	habits = argc > 1 ? atoi(argv[1]) : 0;
	if (runs < 1 || at_once < 1) {
		fprintf(stderr, "hostfunc: want HABITS [RUNS [AT_ONCE]], 1 or more of each\n");
		return 2;
	}
	shared = mmap(NULL, at_once * sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		return 2;
	for (; started < runs && started < at_once; started++)
		start(&shared[started]);
	for (int done = 0; done < runs; done++) {
		int status, i = 0;
		pid_t pid = wait(&status);
		while (i < at_once - 1 && shared[i].pid != pid)
			i++;
		bad += ended(&shared[i], status);
		shared[i].pid = 0;
		if (started < runs && ++started)
			start(&shared[i]);
	}
	printf("habits=%d: %d of %d\n", habits, bad, runs);
	return bad ? 3 : 0;
}
