/* A stand-in for libcuda, for tests of the package's calls: C functions of the real names
 * and prototypes. Memory is memfds, mapped here; handles are descriptors; streams and events
 * do at once what they are given, but for a stream that waits for a value, and for one that was
 * given a batch: a thread does that, and what comes behind. It counts what is there
 * (fake_count), and fails where it is told to (fake_fail). */

#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
typedef int CUresult;
typedef uint64_t CUdeviceptr;

enum { OK = 0, INVALID = 1, INVALID_CONTEXT = 201, NOT_READY = 600 };

static long count;
static char failing[64];
static int failure;
static __thread int depth; /* contexts that are current */
static char log_of_waits[256];

EXPORT long fake_count(void) { return count; }
EXPORT void fake_fail(const char *name, int code) {
	strncpy(failing, name, sizeof failing - 1);
	failure = code;
}
EXPORT int fake_depth(void) { return depth; }
EXPORT const char *fake_log(void) { return log_of_waits; }

#define FAILS if (!strcmp(failing, __func__)) return failure
#define NEEDS_CONTEXT do { FAILS; if (!depth) return INVALID_CONTEXT; } while (0)

EXPORT CUresult cuInit(unsigned flags) { FAILS; return flags ? INVALID : OK; }
EXPORT CUresult cuGetErrorName(int code, const char **out) {
	*out = code == INVALID ? "CUDA_ERROR_INVALID_VALUE" : code == 801 ? "CUDA_ERROR_NOT_SUPPORTED" : code == INVALID_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT" : NULL;
	return *out ? OK : INVALID;
}
EXPORT CUresult cuGetErrorString(int code, const char **out) { *out = "what it means"; return code < 0 ? INVALID : OK; }
EXPORT CUresult cuDeviceGetCount(int *n) { FAILS; *n = 2; return OK; }
EXPORT CUresult cuDeviceGet(int *device, int ordinal) { FAILS; *device = ordinal; return ordinal < 2 ? OK : 101; }
EXPORT CUresult cuDeviceGetName(char *out, int n, int device) { FAILS; strncpy(out, "stand-in", n); return device < 2 ? OK : 101; }
EXPORT CUresult cuDeviceGetUuid_v2(unsigned char *out, int device) {
	FAILS;
	for (int i = 0; i < 16; i++) out[i] = device + i;
	return OK;
}
EXPORT CUresult cuDeviceGetAttribute(int *out, int attribute, int device) { FAILS; *out = attribute == 103; return device < 2 ? OK : 101; }
EXPORT CUresult cuDeviceTotalMem_v2(size_t *out, int device) { FAILS; *out = (size_t)80 << 30; return device < 2 ? OK : 101; }
EXPORT CUresult cuDevicePrimaryCtxRetain(void **out, int device) { FAILS; *out = (void *)(uintptr_t)(0x1000 + device); return OK; }
EXPORT CUresult cuCtxPushCurrent_v2(void *context) { FAILS; if ((uintptr_t)context < 0x1000) return INVALID_CONTEXT; depth++; return OK; }
EXPORT CUresult cuCtxSetCurrent(void *context) { FAILS; depth = context != NULL; return OK; }
EXPORT CUresult cuCtxPopCurrent_v2(void **out) { *out = NULL; depth--; return OK; }

struct location { int type, id; };
struct prop { int type, handles; struct location location; void *win32; unsigned char flags[8]; };
struct access { struct location location; int flags; };

EXPORT CUresult cuMemGetAllocationGranularity(size_t *out, const struct prop *p, int option) {
	FAILS;
	if (p->type != 1 || p->handles != 1 || p->location.type != 1 || option) return INVALID;
	*out = 2 << 20;
	return OK;
}
EXPORT CUresult cuMemCreate(uint64_t *handle, size_t size, const struct prop *p, unsigned long long flags) {
	NEEDS_CONTEXT;
	if (p->type != 1 || p->handles != 1 || flags || size % (2 << 20)) return INVALID;
	int fd = memfd_create("stand-in", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, size)) return 2;
	*handle = fd, count++;
	return OK;
}
EXPORT CUresult cuMemRelease(uint64_t handle) { NEEDS_CONTEXT; count--; return close(handle) ? INVALID : OK; }
EXPORT CUresult cuMemExportToShareableHandle(void *out, uint64_t handle, int type, unsigned long long flags) {
	FAILS;
	if (type != 1 || flags) return INVALID;
	*(int *)out = dup(handle);
	return OK;
}
EXPORT CUresult cuMemImportFromShareableHandle(uint64_t *handle, void *fd, int type) {
	FAILS;
	int own = fcntl((int)(uintptr_t)fd, F_DUPFD_CLOEXEC, 3);
	if (type != 1 || own < 0) return INVALID;
	*handle = own, count++;
	return OK;
}
EXPORT CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t align, CUdeviceptr hint, unsigned long long flags) {
	NEEDS_CONTEXT;
	void *at = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (align || hint || flags || at == MAP_FAILED) return INVALID;
	*out = (CUdeviceptr)at, count++;
	return OK;
}
EXPORT CUresult cuMemAddressFree(CUdeviceptr at, size_t size) { NEEDS_CONTEXT; count--; return munmap((void *)at, size) ? INVALID : OK; }
EXPORT CUresult cuMemMap(CUdeviceptr at, size_t size, size_t offset, uint64_t handle, unsigned long long flags) {
	NEEDS_CONTEXT;
	struct stat st;
	if (offset || flags || fstat(handle, &st) || (size_t)st.st_size != size) return 801;
	if (mmap((void *)at, size, PROT_NONE, MAP_SHARED | MAP_FIXED, handle, 0) == MAP_FAILED) return INVALID;
	count++;
	return OK;
}
EXPORT CUresult cuMemUnmap(CUdeviceptr at, size_t size) {
	NEEDS_CONTEXT;
	count--;
	return mmap((void *)at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED ? INVALID : OK;
}
EXPORT CUresult cuMemSetAccess(CUdeviceptr at, size_t size, const struct access *a, size_t n) {
	NEEDS_CONTEXT;
	if (!size || n != 1 || a->location.type != 1 || (a->flags != 1 && a->flags != 3)) return INVALID;
	return mprotect((void *)at, size, a->flags == 3 ? PROT_READ | PROT_WRITE : PROT_READ) ? INVALID : OK;
}

/* Plain memory: one allocation at a time is enough for tests of its handle. */
static CUdeviceptr plain;
static size_t plain_size;
EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size) {
	NEEDS_CONTEXT;
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED) return 2;
	*out = plain = (CUdeviceptr)at, plain_size = size, count++;
	return OK;
}
EXPORT CUresult cuMemFree_v2(CUdeviceptr at) { NEEDS_CONTEXT; count--; (void)at; return OK; /* leaked: its size is not kept */ }
EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr at) {
	NEEDS_CONTEXT;
	if (at < plain || at >= plain + plain_size) return INVALID;
	*base = plain, *size = plain_size;
	return OK;
}
struct handle { char bytes[64]; };
EXPORT CUresult cuIpcGetMemHandle(struct handle *out, CUdeviceptr at) { NEEDS_CONTEXT; memset(out, 7, sizeof *out); memcpy(out, &at, 8); return OK; }
EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, struct handle h, unsigned flags) {
	NEEDS_CONTEXT;
	if (flags != 1 || h.bytes[63] != 7) return INVALID; /* passed by value, all of it */
	memcpy(out, &h, 8), count++;
	return OK;
}
EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr at) { NEEDS_CONTEXT; count--; return at ? OK : INVALID; }

/* Host memory that is registered has another address for streams. */
#define ELSEWHERE (1ull << 60)
static struct { uint64_t at; size_t size; } registered[64];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Work of a stream: waits (kind 4) and writes (5) as of a batch, waits for events (6) and records of them (7), and copies (0). */
struct op { int kind; CUdeviceptr at; uint64_t value; void *to; const void *from; struct op *next; };
struct event { uint64_t recorded, done; };
struct stream { CUdeviceptr at; uint64_t n; struct op *first, **last; struct stream *next; };
static struct stream null, *streams = &null;
static int working;

static int waiting(struct stream *s) { return s && s->at && (int64_t)(*(volatile uint64_t *)s->at - s->n) < 0; }
static volatile uint64_t *word_of(const struct op *op) { return (volatile uint64_t *)(op->at - ELSEWHERE); }

static int step(struct stream *s) {
	struct op *op = s->first;
	if (!op || (op->kind == 4 && (int64_t)(*word_of(op) - op->value) < 0)) return 0;
	if (op->kind == 6 && ((struct event *)op->to)->done < op->value) return 0;
	if (op->kind == 7) ((struct event *)op->to)->done = op->value;
	if (op->kind == 5) __atomic_store_n(word_of(op), op->value, __ATOMIC_SEQ_CST);
	if (!op->kind) memcpy(op->to, op->from, op->value);
	if (!(s->first = op->next)) s->last = &s->first;
	free(op);
	return 1;
}

static void *work(void *unused) {
	for (;; usleep(20)) {
		pthread_mutex_lock(&lock);
		for (struct stream *s = streams; s; s = s->next)
			while (step(s)) continue;
		pthread_mutex_unlock(&lock);
	}
	return unused;
}

static void enqueue(struct stream *s, struct op op) {
	struct op *own = malloc(sizeof *own);
	*own = op, own->next = NULL;
	if (!s->last) s->last = &s->first;
	*s->last = own, s->last = &own->next;
	pthread_t thread;
	if (!working++) pthread_create(&thread, NULL, work, NULL);
}

static int busy(struct stream *s) {
	pthread_mutex_lock(&lock);
	int is = s && s->first != NULL;
	pthread_mutex_unlock(&lock);
	return is;
}

static CUresult copy(struct stream *s, void *to, const void *from, size_t n) {
	if ((uint64_t)from >= ELSEWHERE) from = (const char *)from - ELSEWHERE;
	pthread_mutex_lock(&lock);
	if (s && s->first) enqueue(s, (struct op){.to = to, .from = from, .value = n});
	else memcpy(to, from, n);
	pthread_mutex_unlock(&lock);
	return OK;
}
static int is_registered(uint64_t at) {
	for (int i = 0; i < 64; i++)
		if (at - registered[i].at < registered[i].size) return 1;
	return 0;
}
/* Copies to memory that is not registered, and between memory of the host, return when they are done. */
EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t n, struct stream *s) {
	NEEDS_CONTEXT;
	int waits = !is_registered((uint64_t)to) || from >= ELSEWHERE || is_registered(from);
	while (waits && busy(s)) usleep(50);
	return copy(s, to, (void *)from, n);
}
EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t n, struct stream *s) { NEEDS_CONTEXT; return copy(s, (void *)to, from, n); }
EXPORT CUresult cuMemsetD8Async(CUdeviceptr at, unsigned char byte, size_t n, struct stream *s) {
	NEEDS_CONTEXT;
	if (s || !n || n > 1ull << 40) return INVALID;
	memset((void *)at, byte, n);
	return OK;
}
EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t n) { NEEDS_CONTEXT; memcpy(to, (void *)from, n); return OK; }
EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t n, struct stream *s) { NEEDS_CONTEXT; return copy(s, (void *)to, (void *)from, n); }

EXPORT CUresult cuMemHostRegister_v2(void *at, size_t size, unsigned flags) {
	NEEDS_CONTEXT;
	for (int i = 0; i < 64; i++)
		if (!registered[i].size) {
			registered[i].at = (uint64_t)at, registered[i].size = size, count++;
			return flags == 3 ? OK : INVALID;
		}
	return 2;
}
EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *at, unsigned flags) { NEEDS_CONTEXT; *out = (CUdeviceptr)at + ELSEWHERE; return flags ? INVALID : OK; }
EXPORT CUresult cuMemHostUnregister(void *at) {
	NEEDS_CONTEXT;
	for (int i = 0; i < 64; i++) {
		if (!registered[i].size || registered[i].at != (uint64_t)at) continue;
		pthread_mutex_lock(&lock);
		for (struct stream *s = streams; s; s = s->next)
			for (struct op *op = s->first; op; op = op->next)
				if (op->at && op->at - ELSEWHERE - registered[i].at < registered[i].size) {
					fprintf(stderr, "cuMemHostUnregister: a stream has still to do with the words, so this would hang for ever\n");
					abort();
				}
		registered[i].size = 0, count--;
		pthread_mutex_unlock(&lock);
		return OK;
	}
	return INVALID;
}
struct mem_op { int operation; CUdeviceptr address; uint64_t value; unsigned flags; uint64_t alias, pad; };
EXPORT CUresult cuStreamBatchMemOp_v2(struct stream *s, unsigned n, const struct mem_op *ops, unsigned flags) {
	NEEDS_CONTEXT;
	if (flags || !n || n > 255) return INVALID;
	s = s ? s : &null;
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < n; i++) {
		int known = 0;
		for (int k = 0; k < 64; k++) known |= ops[i].address % 8 == 0 && ops[i].address - ELSEWHERE - registered[k].at < registered[k].size;
		if (!known || ops[i].flags || (ops[i].operation != 4 && ops[i].operation != 5)) abort();
		enqueue(s, (struct op){.kind = ops[i].operation, .at = ops[i].address, .value = ops[i].value});
	}
	pthread_mutex_unlock(&lock);
	return OK;
}
EXPORT CUresult cuStreamIsCapturing(struct stream *s, int *out) { NEEDS_CONTEXT; *out = (uintptr_t)s == 0xca9; return OK; }

EXPORT CUresult cuStreamCreate(struct stream **out, unsigned flags) {
	NEEDS_CONTEXT;
	struct stream *s = *out = calloc(1, sizeof *s);
	pthread_mutex_lock(&lock);
	s->next = streams, streams = s, count++;
	pthread_mutex_unlock(&lock);
	return flags == 1 ? OK : INVALID;
}
EXPORT CUresult cuStreamDestroy_v2(struct stream *s) {
	NEEDS_CONTEXT;
	pthread_mutex_lock(&lock);
	struct stream **p = &streams;
	while (*p != s) p = &(*p)->next;
	*p = s->next, count--;
	pthread_mutex_unlock(&lock);
	free(s);
	return OK;
}
EXPORT CUresult cuStreamSynchronize(struct stream *s) {
	NEEDS_CONTEXT;
	while (busy(s)) usleep(50);
	return waiting(s) ? INVALID : OK;
}
EXPORT CUresult cuCtxSynchronize(void) {
	NEEDS_CONTEXT;
	for (int all = 1; all; usleep(all ? 50 : 0)) {
		pthread_mutex_lock(&lock);
		all = 0;
		for (struct stream *s = streams; s; s = s->next) all |= s->first != NULL;
		pthread_mutex_unlock(&lock);
	}
	return OK;
}
EXPORT CUresult cuStreamQuery(struct stream *s) { NEEDS_CONTEXT; return waiting(s) || busy(s) ? NOT_READY : OK; }
EXPORT CUresult cuStreamWaitValue64_v2(struct stream *s, CUdeviceptr at, uint64_t n, unsigned flags) { NEEDS_CONTEXT; s->at = at, s->n = n; return flags || at % 8 ? INVALID : OK; }
EXPORT CUresult cuStreamWriteValue64_v2(struct stream *s, CUdeviceptr at, uint64_t n, unsigned flags) {
	NEEDS_CONTEXT;
	if (flags || waiting(s)) return INVALID;
	*(volatile uint64_t *)at = n;
	return OK;
}
EXPORT CUresult cuStreamWaitEvent(void *s, void *event, unsigned flags) {
	NEEDS_CONTEXT;
	if (flags || !event) return INVALID;
	size_t n = strlen(log_of_waits);
	if (n + 8 < sizeof log_of_waits) log_of_waits[n] = '0' + (uintptr_t)s % 10;
	struct event *e = event;
	pthread_mutex_lock(&lock);
	if (e->done < e->recorded) enqueue(s ? s : &null, (struct op){.kind = 6, .to = e, .value = e->recorded});
	pthread_mutex_unlock(&lock);
	return OK;
}
EXPORT CUresult cuEventCreate(void **out, unsigned flags) { NEEDS_CONTEXT; *out = calloc(1, sizeof(struct event)), count++; return flags & 2 ? OK : INVALID; }
EXPORT CUresult cuEventDestroy_v2(void *event) { NEEDS_CONTEXT; count--; return event ? OK : INVALID; /* leaked: a stream may have it */ }
EXPORT CUresult cuEventRecord(struct event *e, void *of) {
	NEEDS_CONTEXT;
	if (!e) return INVALID;
	pthread_mutex_lock(&lock);
	struct stream *s = streams;
	while (s && s != (of ? of : &null)) s = s->next;
	e->recorded++;
	if (s && s->first) enqueue(s, (struct op){.kind = 7, .to = e, .value = e->recorded});
	else e->done = e->recorded;
	pthread_mutex_unlock(&lock);
	return OK;
}
EXPORT CUresult cuEventQuery(void *event) { NEEDS_CONTEXT; return event ? OK : INVALID; }
EXPORT CUresult cuIpcGetEventHandle(struct handle *out, void *event) { NEEDS_CONTEXT; memset(out, 'e', sizeof *out); return event ? OK : INVALID; }
EXPORT CUresult cuIpcOpenEventHandle(void **out, struct handle h) {
	NEEDS_CONTEXT;
	if (h.bytes[0] != 'e' || h.bytes[63] != 'e') return INVALID;
	*out = calloc(1, sizeof(struct event)), count++;
	return OK;
}
