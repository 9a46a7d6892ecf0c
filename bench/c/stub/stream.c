/* Streams of the stub: a thread for each, which does what was queued, in that order. What is
 * queued beyond its room waits for it. A launch is of check.ptx's kernel, which is written here
 * again. */
#define _GNU_SOURCE
#include "cuda.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum kind { WAIT, WRITE, SET, COPY, CHECK };

struct work {
	enum kind kind;
	uint64_t at, value, n;
	void *to;
};

enum { ROOM = 4096 };

struct CUstream_st {
	struct work work[ROOM];
	_Atomic uint64_t queued, done;
};

/* rest lets others run, and sleeps once a wait is long. */
static void rest(unsigned *looks)
{
	if (++*looks < 100)
		sched_yield();
	else
		usleep(50);
}

static void check(struct work *w)
{
	uint32_t *p = (uint32_t *)(uintptr_t)w->at;
	for (uint64_t i = 0; i < w->n; i++)
		if (p[i] != (uint32_t)w->value)
			atomic_fetch_add((_Atomic uint64_t *)w->to, 1);
}

static void work(struct work *w)
{
	_Atomic uint64_t *word = (_Atomic uint64_t *)(uintptr_t)w->at;
	unsigned looks = 0;
	switch (w->kind) {
	case WAIT:
		while ((int64_t)(atomic_load(word) - w->value) < 0)
			rest(&looks);
		break;
	case WRITE:
		atomic_store(word, w->value);
		break;
	case SET:
		for (uint64_t i = 0; i < w->n; i++)
			((uint32_t *)(uintptr_t)w->at)[i] = (uint32_t)w->value;
		break;
	case COPY:
		memcpy(w->to, (void *)(uintptr_t)w->at, w->n);
		break;
	case CHECK:
		check(w);
	}
}

static void *run(void *stream)
{
	CUstream s = stream;
	for (unsigned looks = 0;; looks = 0) {
		while (s->done == s->queued)
			rest(&looks);
		work(&s->work[s->done % ROOM]);
		s->done++;
	}
	return NULL;
}

/* result is that of the call. */
static CUresult result(const char *function, int ok)
{
	const char *fail = getenv("STUB_FAIL");
	return fail && !strcmp(fail, function) ? CUDA_ERROR_OUT_OF_MEMORY : ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult queue(const char *function, CUstream s, struct work w)
{
	CUresult r = result(function, s != NULL);
	if (r != CUDA_SUCCESS)
		return r;
	while (s->queued - s->done == ROOM)
		sched_yield();
	s->work[s->queued % ROOM] = w;
	s->queued++;
	return r;
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
	pthread_t t;
	*stream = calloc(1, sizeof **stream);
	return result(__func__, *stream && flags == CU_STREAM_NON_BLOCKING && !pthread_create(&t, NULL, run, *stream));
}

CUresult cuStreamSynchronize(CUstream s)
{
	while (s->done != s->queued)
		sched_yield();
	return result(__func__, 1);
}

CUresult cuStreamWaitValue64(CUstream s, CUdeviceptr p, uint64_t value, unsigned flags)
{
	if (flags != CU_STREAM_WAIT_VALUE_GEQ)
		return CUDA_ERROR_INVALID_VALUE;
	return queue(__func__, s, (struct work){.kind = WAIT, .at = p, .value = value});
}

CUresult cuStreamWriteValue64(CUstream s, CUdeviceptr p, uint64_t value, unsigned flags)
{
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	return queue(__func__, s, (struct work){.kind = WRITE, .at = p, .value = value});
}

CUresult cuStreamBatchMemOp(CUstream s, unsigned count, CUstreamBatchMemOpParams *ops, unsigned flags)
{
	CUresult r = result(__func__, count && count < 256 && !flags);
	for (unsigned i = 0; i < count && r == CUDA_SUCCESS; i++)
		if (ops[i].operation == CU_STREAM_MEM_OP_WAIT_VALUE_64)
			r = cuStreamWaitValue64(s, ops[i].waitValue.address, ops[i].waitValue.value64, ops[i].waitValue.flags);
		else
			r = cuStreamWriteValue64(s, ops[i].writeValue.address, ops[i].writeValue.value64, ops[i].writeValue.flags);
	return r;
}

CUresult cuMemsetD32Async(CUdeviceptr p, unsigned value, size_t n, CUstream s)
{
	if (getenv("STUB_FAIL") && !strcmp(getenv("STUB_FAIL"), "frame"))
		value++;
	return queue(__func__, s, (struct work){.kind = SET, .at = p, .value = value, .n = n});
}

CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t n, CUstream s)
{
	return queue(__func__, s, (struct work){.kind = COPY, .at = from, .n = n, .to = to});
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	*module = NULL;
	return result(__func__, strstr(image, ".visible .entry check_words(") != NULL);
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	static int some;
	*function = (CUfunction)&some;
	return result(__func__, !module && !strcmp(name, "check_words"));
}

CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
			CUstream s, void **params, void **extra)
{
	if (!f || !gx || gy != 1 || gz != 1 || bx != 256 || by != 1 || bz != 1 || shared || extra)
		return CUDA_ERROR_INVALID_VALUE;
	struct work w = {.kind = CHECK, .at = *(CUdeviceptr *)params[0], .n = *(uint64_t *)params[1], .value = *(uint32_t *)params[2]};
	w.to = (void *)(uintptr_t)*(CUdeviceptr *)params[3];
	return queue(__func__, s, w);
}

CUresult cuMemHostRegister(void *p, size_t n, unsigned flags) { return result(__func__, p && n && flags == 3); }
CUresult cuMemHostUnregister(void *p) { return result(__func__, p != NULL); }

CUresult cuMemHostGetDevicePointer(CUdeviceptr *at, void *p, unsigned flags)
{
	*at = (CUdeviceptr)(uintptr_t)p;
	return result(__func__, !flags);
}

CUresult cuMemAllocHost(void **p, size_t n)
{
	*p = calloc(1, n);
	return result(__func__, *p != NULL);
}

CUresult cuMemFreeHost(void *p)
{
	free(p);
	return result(__func__, 1);
}
