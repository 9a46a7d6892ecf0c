/*
 * channel: reads the frames of a channel of gpufd, and writes their bytes to standard output.
 *
 *	cc -O2 -Wall -Wextra -o channel channel.c -ldl
 *	channel -socket PATH [-name NAME] [-policy block|drop-oldest|drop-newest|latest]
 *	        [-driver auto|cuda|soft] [-order host|stream] [-timeout SECONDS]
 *
 * A reader of docs/wire.md ("Channels") in one file. By the host it waits for each frame on the
 * CPU, copies and releases it; with -policy latest it takes the newest frame, which the writer does not
 * touch until it is released. By a stream, which a channel for streams and a GPU allow, it queues up
 * to 32 frames ahead: the stream waits for a frame, copies it and releases it. libcuda is opened when the
 * program runs; what is used of cuda.h is declared below.
 *
 * The writer is of our own user and trusted to be no worse than broken: what it says is checked.
 * consumer.c shows how descriptors are taken of peers that mean harm. Exit codes: 0 the writer
 * has ended, 1 failed, 2 wrong usage, 3 this machine cannot, 4 timed out, or the writer was
 * lost or has dropped this reader.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { ATTACH = 1, OFFER = 2, REFUSE = 3, PROGRESS = 4, MAPPED = 5, VERDICT = 6, REVOKE = 7, PUBLISH = 8, FAREWELL = 10, CURSORS = 16 };
enum { CUDA = 1, SOFT = 2, HEADER = 16, MAX_RECORD = 8192, MAX_FDS = 64, MAX_CHUNKS = 4096, IGNORABLE = 1 };
enum { CAPABILITIES = 1, PROCESS = 2, CURSOR_SIZE = 5, FIELD_REQUIRED = 0x8000, TAKES_CURSORS = 4, MAY_OUTLIVE = 1 };

/* Where the words of the cursors are, and those of an entry. */
enum {
	VERSION = 0x008, SLOTS = 0x010, SLOT_SIZE = 0x018, STRIDE = 0x020, FLAGS = 0x028, GENERATION = 0x030,
	PUBLISHED = 0x080, NEWEST = 0x088, WRITER_STATE = 0x100, LAST = 0x108, WRITER_POLLS = 0x110, START = 0x118,
	RELEASED = 0x180, READER_STATE = 0x200, POLICY = 0x208, JOIN = 0x210, READER_POLLS = 0x218, CLAIM = 0x220,
	READER_BELL = 0x280, WRITER_BELL = 0x300, ENTRIES = 0x1000, ENTRY = 256,
	STAMP = 0x00, SEQUENCE = 0x08, SLOT = 0x10, BYTES = 0x20, LENGTH = 0x28, MAX_USER = 208,
	MAX_SLOTS = 4096, STREAMS = 1, ANY_ORDER = 2,
	MAX_AHEAD = 32 /* frames that a stream is given ahead: a driver that has no room for more work keeps the call */
};
enum { BLOCK = 1, DROP_OLDEST = 2, DROP_NEWEST = 3, LATEST = 4 };
#define GIVEN INT64_MAX /* what frees our own stream when the writer is gone */

static struct {
	const char *socket, *name;
	int driver; /* 0 chooses */
	int policy;
	bool stream;
	double timeout;
} options = {.name = "", .policy = BLOCK, .timeout = 30};

static char failure[1024];
static int status;
static bool no_offer; /* the writer listens, and has not made the channel yet */

static bool fail(int code, const char *format, ...)
{
	if (status)
		return false;
	va_list args;
	va_start(args, format);
	vsnprintf(failure, sizeof failure, format, args);
	va_end(args);
	status = code;
	return false;
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* --- records --- */

static uint64_t get(const unsigned char *p, int bytes)
{
	uint64_t n = 0;
	for (int i = bytes; i--;)
		n = n << 8 | p[i];
	return n;
}

static unsigned char *put(unsigned char *p, uint64_t n, int bytes)
{
	for (int i = 0; i < bytes; i++, n >>= 8)
		*p++ = (unsigned char)n;
	return p;
}

struct record {
	int type, nfds, fds[MAX_FDS];
	size_t length; /* of the body */
	unsigned char bytes[MAX_RECORD], *body;
};

static bool say(int sock, int type, const void *body, size_t n)
{
	unsigned char record[HEADER + 512], *p = record;
	memcpy(p, "GPFD", 4);
	p = put(put(put(put(p + 4, 1, 2), (uint64_t)type, 2), type == FAREWELL ? IGNORABLE : 0, 4), n, 4);
	memcpy(p, body, n);
	return send(sock, record, HEADER + n, MSG_NOSIGNAL) >= 0 || errno == EPIPE || errno == ECONNRESET || fail(1, "send: %s", strerror(errno));
}

static void close_fds(struct record *r)
{
	while (r->nfds)
		close(r->fds[--r->nfds]);
}

/* take_record receives one record, whose descriptors are the caller's. 0 at the end, -1 failed. */
static int take_record(int sock, struct record *r)
{
	union {
		char bytes[CMSG_SPACE(MAX_FDS * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec iov = {.iov_base = r->bytes, .iov_len = sizeof r->bytes};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	ssize_t n = recvmsg(sock, &m, MSG_CMSG_CLOEXEC);
	r->nfds = 0;
	if (n < 0 && (errno == ECONNRESET || errno == EINTR))
		n = recvmsg(sock, &m, MSG_CMSG_CLOEXEC); /* what was queued before a reset comes now */
	if (n < 0 && errno != ECONNRESET)
		return fail(1, "recvmsg: %s", strerror(errno)), -1;
	if (n <= 0)
		return 0;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int) && r->nfds < MAX_FDS; i++)
			memcpy(&r->fds[r->nfds++], CMSG_DATA(c) + i * sizeof(int), sizeof(int));
	}
	const unsigned char *b = r->bytes;
	if (m.msg_flags & (MSG_TRUNC | MSG_CTRUNC) || n < HEADER || memcmp(b, "GPFD", 4) || get(b + 4, 2) != 1 || get(b + 12, 4) != (uint64_t)n - HEADER) {
		close_fds(r);
		return fail(1, "a record that is no record of version 1, or was cut off"), -1;
	}
	r->type = (int)get(b + 6, 2), r->length = (size_t)n - HEADER, r->body = r->bytes + HEADER;
	return 1;
}

/* ends is whether a record ends the conversation, which is a failure then. */
static bool ends(const struct record *r)
{
	size_t at = r->type == REFUSE ? 2 : 0;
	if (r->type != REFUSE && r->type != REVOKE)
		return false;
	size_t n = r->length < at + 2 ? 0 : get(r->body + at, 2);
	if (r->length < at + 2 || n > r->length - at - 2)
		n = 0;
	no_offer = r->type == REFUSE && r->length >= 2 && get(r->body, 2) == 1;
	char text[200];
	snprintf(text, sizeof text, "%.*s", (int)n, (const char *)r->body + at + 2);
	for (char *p = text; *p; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			*p = '?';
	fail(r->type == REVOKE ? 4 : 1, r->type == REVOKE ? "the writer ended the offer: %s" : "refused: %s", text);
	return true;
}

/* hear waits for a record that is not to be ignored, and does not end the conversation. */
static bool hear(int sock, struct record *r)
{
	for (double deadline = now() + options.timeout;;) {
		struct pollfd p = {.fd = sock, .events = POLLIN};
		double left = deadline - now();
		if (left <= 0 || poll(&p, 1, (int)(left * 1000) + 1) == 0)
			return fail(4, "the writer took longer than %g s", options.timeout);
		int got = take_record(sock, r);
		if (got <= 0)
			return got == 0 && fail(4, "the writer hung up");
		if (ends(r)) {
			close_fds(r);
			return false;
		}
		bool known = r->type == OFFER || r->type == PROGRESS || r->type == CURSORS || r->type == PUBLISH;
		if (known && get(r->bytes + 8, 4) >> 16)
			return close_fds(r), fail(1, "flags that would have to be known");
		if (known && r->type != PROGRESS)
			return true;
		close_fds(r);
		if (!known && !(get(r->bytes + 8, 4) & IGNORABLE))
			return fail(1, "a record of type %d where an offer is expected", r->type);
	}
}

/* --- the offer --- */

struct offer {
	int driver, pending;
	uint32_t chunks;
	unsigned char device[16];
	uint64_t size, chunk_size, granularity, generation, cursor_size;
};

/* read_fields finds the cursors' size among the fields, which begin there. */
static bool read_fields(const struct record *r, size_t at, struct offer *o)
{
	for (long last = -1; at < r->length;) {
		size_t left = r->length - at;
		long number = left < 4 ? -1 : (long)get(r->body + at, 2);
		uint64_t n = left < 4 ? 0 : get(r->body + at + 2, 2);
		if (left < 4 || n > left - 4 || number <= last || number >= FIELD_REQUIRED || (number == CURSOR_SIZE && n < 8))
			return fail(1, "an OFFER with field %ld that makes no sense or is not known here", number);
		if (number == CURSOR_SIZE)
			o->cursor_size = get(r->body + at + 4, 8);
		last = number;
		at += 4 + n;
	}
	return true;
}

/* same is whether two records are of one offer. It compares fields: a struct may have padding. */
static bool same(const struct offer *a, const struct offer *b)
{
	return a->driver == b->driver && a->pending == b->pending && a->chunks == b->chunks && !memcmp(a->device, b->device, sizeof a->device) &&
	       a->size == b->size && a->chunk_size == b->chunk_size && a->granularity == b->granularity && a->generation == b->generation &&
	       a->cursor_size == b->cursor_size;
}

static bool read_offer(const struct record *r, struct offer *o, uint32_t first)
{
	const unsigned char *b = r->body;
	if (r->type != OFFER || r->length < 68 || r->length < 68 + get(b + 64, 2) + get(b + 66, 2))
		return fail(1, "a record of type %d where an OFFER is expected", r->type);
	struct offer before = *o;
	*o = (struct offer){.driver = b[0], .pending = b[3], .chunks = (uint32_t)get(b + 4, 4), .size = get(b + 24, 8), .chunk_size = get(b + 32, 8),
			    .granularity = get(b + 40, 8), .generation = get(b + 48, 8)};
	memcpy(o->device, b + 8, 16);
	if (!read_fields(r, 68 + get(b + 64, 2) + get(b + 66, 2), o))
		return false;
	if (first && !same(o, &before))
		return fail(1, "records of an offer contradict each other");
	if (b[2] != 1 || b[3] > 1 || get(b + 56, 4) != first || get(b + 60, 4) != (uint64_t)r->nfds || !r->nfds)
		return fail(1, "an OFFER not by descriptors, or not of as many as came");
	if (!o->chunks || o->chunks > MAX_CHUNKS || first + (uint32_t)r->nfds > o->chunks || !o->granularity || !o->chunk_size ||
	    o->chunk_size % o->granularity || o->chunk_size > SIZE_MAX / 2 / o->chunks || o->size > o->chunks * o->chunk_size ||
	    o->size <= (o->chunks - 1) * o->chunk_size)
		return fail(1, "an OFFER whose numbers make no buffer");
	return o->cursor_size || fail(1, "the offer is no channel: it has no cursors");
}

/* published waits until the offer is there in full: who comes while a writer starts is early. */
static bool published(int sock, struct record *r, const struct offer *o)
{
	if (!hear(sock, r))
		return false;
	close_fds(r);
	return (r->type == PUBLISH && r->length >= 8 && get(r->body, 8) == o->generation) || fail(1, "a record of type %d where PUBLISH is expected", r->type);
}

/* ask takes the offer's descriptors, and that of the cursors. */
static bool ask(int sock, int driver, struct offer *o, int *fds, uint32_t *nfds, int *cursors)
{
	static struct record r;
	unsigned char body[400], *p = put(put(put(body, (uint64_t)driver, 1), 1 /* read-only */, 1), 0, 2);
	size_t n = strlen(options.name);
	p = put(p, n, 2);
	memcpy(p, options.name, n);
	p = put(put(put(p + n, CAPABILITIES, 2), 8, 2), TAKES_CURSORS, 8);
	p = put(put(put(p, PROCESS, 2), 8, 2), driver == SOFT ? 0 : MAY_OUTLIVE, 8); /* nobody asks the driver here */
	if (!say(sock, ATTACH, body, (size_t)(p - body)))
		return false;
	do {
		if (!hear(sock, &r))
			return false;
		memcpy(fds + *nfds, r.fds, (size_t)r.nfds * sizeof *fds);
		uint32_t first = *nfds;
		*nfds += (uint32_t)r.nfds; /* ours to close, whatever it says */
		if (!read_offer(&r, o, first))
			return false;
	} while (*nfds < o->chunks);
	if (o->driver != driver)
		return fail(1, "the writer uses a driver of kind %d and this program %d (1 cuda, 2 soft)", o->driver, driver);
	if (!hear(sock, &r))
		return false;
	struct stat st;
	if (r.type != CURSORS || r.nfds != 1) {
		close_fds(&r);
		return fail(1, "a record of type %d with %d descriptors where CURSORS are expected", r.type, r.nfds);
	}
	*cursors = r.fds[0];
	int seals = fcntl(*cursors, F_GET_SEALS), want = F_SEAL_SHRINK | F_SEAL_GROW;
	if (seals < 0 || (seals & (want | F_SEAL_WRITE)) != want || fstat(*cursors, &st) || (uint64_t)st.st_size != o->cursor_size)
		return fail(1, "cursors that are not sealed, or not as large as the offer says");
	if (o->cursor_size > ENTRIES + MAX_SLOTS * ENTRY)
		return fail(1, "cursors of %" PRIu64 " bytes", o->cursor_size);
	return !o->pending || published(sock, &r, o);
}

/* --- memory --- */

/* What is used of cuda.h, CUDA 11.7 and newer. */
typedef int CUresult, CUdevice;
typedef void *CUcontext, *CUstream;
typedef struct { int type, id; } CUmemLocation;
typedef struct { CUmemLocation location; int flags; } CUmemAccessDesc;

#define FUNCTIONS(F)                                                                      \
	F(cuInit, (unsigned flags))                                                       \
	F(cuGetErrorName, (CUresult error, const char **name))                            \
	F(cuDeviceGetCount, (int *count))                                                 \
	F(cuDeviceGet, (CUdevice *device, int ordinal))                                   \
	F(cuDeviceGetUuid_v2, (unsigned char *uuid, CUdevice device))                     \
	F(cuDevicePrimaryCtxRetain, (CUcontext *context, CUdevice device))                \
	F(cuCtxSetCurrent, (CUcontext context))                                           \
	F(cuMemAddressReserve, (uint64_t *at, size_t size, size_t align, uint64_t hint, unsigned long long flags)) \
	F(cuMemImportFromShareableHandle, (uint64_t *handle, void *fd, int type))         \
	F(cuMemMap, (uint64_t at, size_t size, size_t offset, uint64_t handle, unsigned long long flags)) \
	F(cuMemSetAccess, (uint64_t at, size_t size, const CUmemAccessDesc *access, size_t count)) \
	F(cuMemAlloc_v2, (uint64_t *at, size_t size))                                     \
	F(cuMemFree_v2, (uint64_t at))                                                    \
	F(cuMemcpyDtoH_v2, (void *to, uint64_t from, size_t size))                        \
	F(cuMemcpyDtoHAsync_v2, (void *to, uint64_t from, size_t size, CUstream stream))  \
	F(cuMemcpyHtoDAsync_v2, (uint64_t to, const void *from, size_t size, CUstream stream)) \
	F(cuMemHostRegister_v2, (void *at, size_t size, unsigned flags))                  \
	F(cuMemHostGetDevicePointer_v2, (uint64_t *device, void *at, unsigned flags))     \
	F(cuMemHostUnregister, (void *at))                                                \
	F(cuStreamCreate, (CUstream *stream, unsigned flags))                             \
	F(cuStreamDestroy_v2, (CUstream stream))                                          \
	F(cuStreamQuery, (CUstream stream))                                               \
	F(cuStreamSynchronize, (CUstream stream))                                         \
	F(cuStreamBatchMemOp_v2, (CUstream stream, unsigned count, struct op *ops, unsigned flags))

/* op is CUstreamBatchMemOpParams for a word of 64 bits: operation 4 waits until it is the value
 * or more, 5 writes it. */
struct op {
	int operation;
	uint64_t address, value;
	unsigned flags;
	uint64_t alias, pad;
};
_Static_assert(sizeof(struct op) == 48 && sizeof(CUmemAccessDesc) == 12, "the layout of cuda.h");

#define DECLARE(name, args) static CUresult(*name) args;
FUNCTIONS(DECLARE)

static bool called(CUresult result, const char *function)
{
	const char *name = NULL;
	if (result)
		cuGetErrorName(result, &name);
	return !result || fail(result == 100 || result == 801 ? 3 : 1, "%s: %s (%d)", function, name ? name : "unknown", result);
}
#define call(function, ...) called(function(__VA_ARGS__), #function)

/* choose is the kind of driver, or 0: without a libcuda that sees a GPU, auto is the software driver. */
static int choose(void)
{
	void *lib = options.driver == SOFT ? NULL : dlopen("libcuda.so.1", RTLD_NOW);
	if (!lib)
		return options.driver == CUDA ? fail(3, "libcuda could not be opened"), 0 : SOFT;
#define LOAD(name, args)                     \
	*(void **)&name = dlsym(lib, #name); \
	if (!name)                           \
		return fail(3, "libcuda does not have " #name ", which came with CUDA 11.7 at the latest"), 0;
	FUNCTIONS(LOAD)
	CUresult result = cuInit(0);
	if (result == 100 && !options.driver)
		return SOFT;
	return called(result, "cuInit") ? CUDA : 0;
}

/* memory is where the chunks are mapped, of the host or of the device. It stays until the end of
 * the process, as all that is of the driver. */
struct memory { int driver; uint64_t at; };

static bool map_files(struct memory *m, const struct offer *o, const int *fds)
{
	char *at = mmap(NULL, o->chunks * o->chunk_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	for (uint32_t i = 0; at != MAP_FAILED && i < o->chunks; i++) {
		struct stat st;
		if (fstat(fds[i], &st) || !S_ISREG(st.st_mode) || (uint64_t)st.st_size != o->chunk_size + 4096)
			return fail(1, "a descriptor that is no memory of the software driver");
		if (mmap(at + i * o->chunk_size, o->chunk_size, PROT_READ, MAP_SHARED | MAP_FIXED, fds[i], 0) == MAP_FAILED)
			at = MAP_FAILED;
	}
	m->at = (uintptr_t)at;
	return at != MAP_FAILED || fail(1, "mmap: %s", strerror(errno));
}

static bool map_device(struct memory *m, const struct offer *o, const int *fds)
{
	int count = 0, ordinal = 0;
	unsigned char uuid[16] = {0};
	CUdevice device = 0;
	CUcontext context;
	if (!call(cuDeviceGetCount, &count))
		return false;
	for (; ordinal < count; ordinal++) {
		if (!call(cuDeviceGet, &device, ordinal) || !call(cuDeviceGetUuid_v2, uuid, device))
			return false;
		if (!memcmp(uuid, o->device, 16))
			break;
	}
	if (ordinal == count)
		return fail(1, "the frames are on a device that is not visible to this process");
	if (!call(cuDevicePrimaryCtxRetain, &context, device) || !call(cuCtxSetCurrent, context) ||
	    !call(cuMemAddressReserve, &m->at, o->chunks * o->chunk_size, 0, 0, 0))
		return false;
	for (uint32_t i = 0; i < o->chunks; i++) {
		uint64_t handle;
		if (!call(cuMemImportFromShareableHandle, &handle, (void *)(intptr_t)fds[i], 1) ||
		    !call(cuMemMap, m->at + i * o->chunk_size, o->chunk_size, 0, handle, 0))
			return false;
	}
	CUmemAccessDesc access = {{1 /* device */, device}, 1 /* read */};
	return call(cuMemSetAccess, m->at, o->chunks * o->chunk_size, &access, 1);
}

/* --- the channel --- */

static struct channel {
	int sock;
	struct memory memory;
	unsigned char *words; /* the cursors */
	uint64_t size, slots, slot_size, stride, first;
	bool streams, lost;
	int policy; /* by which frames are ordered with the writer */
	uint64_t next, seen, last; /* number of the next frame, of the last that was given, sequence of the last taken */
	uint64_t released, whole;  /* by us; given when the writer was lost */
	unsigned char *host;       /* where frames are copied to: by a stream, one behind the other, the entry of each before it */
	size_t room;               /* bytes there */
	uint64_t ahead, entries;   /* frames that a stream is given ahead; memory of the device for their entries */
} c;

static uint64_t *word(uint64_t at) { return (uint64_t *)(void *)(c.words + at); }
static uint64_t load(uint64_t at) { return __atomic_load_n(word(at), __ATOMIC_SEQ_CST); }
static void store(uint64_t at, uint64_t v) { __atomic_store_n(word(at), v, __ATOMIC_SEQ_CST); }
static uint64_t entry(uint64_t n) { return ENTRIES + (n - 1) % c.slots * ENTRY; }
static uint64_t entry_of_slot(uint64_t slot) { return ENTRIES + slot * ENTRY; } /* with LATEST */

/* find is the slot of frame n with LATEST, if its entry is whole; else it is no slot. */
static uint64_t find(uint64_t n)
{
	uint64_t slot = 0;
	while (slot < c.slots && load(entry_of_slot(slot) + STAMP) != 2 * n)
		slot++;
	return slot;
}

static void ring(uint64_t bell)
{
	uint32_t *w = (uint32_t *)word(bell);
	if (!__atomic_load_n(w, __ATOMIC_SEQ_CST))
		return;
	__atomic_store_n(w, 0, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, w, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* look_at_writer sees whether the lease has ended: then frames behind *whole* never come. */
static void look_at_writer(void)
{
	static struct record r;
	struct pollfd p = {.fd = c.sock, .events = POLLIN};
	while (!c.lost && poll(&p, 1, 0) > 0) {
		int got = take_record(c.sock, &r);
		bool over = got <= 0 || r.type == REVOKE || r.type == REFUSE;
		close_fds(&r);
		if (over) {
			c.whole = load(PUBLISHED);
			if (c.policy == LATEST && find(c.whole + 1) < c.slots)
				c.whole++; /* the writer was killed just before it said so */
			c.lost = true;
		}
	}
}

/* await waits until a word is at least n, the writer is lost or the time is over. It looks for 50
 * us, and then sleeps until the bell rings. */
static bool await(uint64_t at, uint64_t n, double deadline)
{
	double spin = now() + 50e-6;
	long pause = 20000;
	for (;;) {
		for (int i = 0; i < 32; i++)
			if (load(at) >= n)
				return true;
		look_at_writer();
		if (c.lost || now() >= deadline)
			return load(at) >= n;
		if (now() < spin)
			continue;
		long longest = load(WRITER_POLLS) ? 250000 : 10000000;
		struct timespec t = {0, pause < longest ? pause : longest};
		uint32_t *bell = (uint32_t *)word(READER_BELL);
		__atomic_store_n(bell, 1, __ATOMIC_SEQ_CST);
		if (load(at) < n)
			syscall(SYS_futex, bell, FUTEX_WAIT, 1, &t, NULL, 0);
		pause = t.tv_nsec * 2;
	}
}

/* read_head checks what the writer says of the channel, and against the offer. */
static bool read_head(const struct offer *o)
{
	c.size = o->cursor_size;
	c.slots = load(SLOTS), c.slot_size = load(SLOT_SIZE), c.stride = load(STRIDE);
	c.streams = load(FLAGS) & STREAMS;
	if (memcmp(c.words, "GPFDCHN1", 8) || load(VERSION) != 1 || load(FLAGS) > ANY_ORDER)
		return fail(1, "cursors that this program does not know");
	if (load(FLAGS) == ANY_ORDER)
		return fail(1, "readers of this channel give its slots back in any order (flag value 2 of the cursors), which this program does not do; read it from Go or Python");
	if (c.slots < 1 || c.slots > MAX_SLOTS || ((ENTRIES + c.slots * ENTRY + 4095) & ~4095ull) != c.size || !c.slot_size ||
	    c.slot_size > c.stride || c.stride > o->size / c.slots || load(GENERATION) != o->generation)
		return fail(1, "nonsense in a cursor: %" PRIu64 " slots of %" PRIu64 " bytes, %" PRIu64 " apart", c.slots, c.slot_size, c.stride);
	c.policy = c.streams ? BLOCK : options.policy;
	if (c.streams && options.policy != BLOCK && options.policy != LATEST)
		return fail(1, "the channel is for streams, where readers block: it admits block and latest");
	if (c.slots == 1 && c.policy != BLOCK)
		return fail(1, "the channel has one slot, where readers block: it admits block alone");
	if (options.stream && (!c.streams || c.memory.driver != CUDA))
		return fail(1, "-order stream wants a channel for streams, and a GPU");
	return true;
}

/* dropped is whether the writer has dropped this reader, whose slots it does not keep then. It says
 * so before it takes one: what was read until then is whole. So a reader looks before it takes a
 * frame, and when it has read the bytes. */
static bool dropped(void) { return load(WRITER_STATE) == 2 || load(WRITER_STATE) == 3; }

/* told is why there are no more frames. */
static bool told(void)
{
	static const char *const why[] = {"", "", "which took too long, or whose connection has ended", "whose policy, number or cursor it does not take"};
	uint64_t state = load(WRITER_STATE), last = c.first + c.whole - 1;
	if (c.policy == DROP_NEWEST)
		last = c.whole ? load(entry(c.whole) + SEQUENCE) : 0;
	if (state == 1)
		return true;
	if (state == 2 || state == 3)
		return fail(4, "the writer has dropped this reader, %s; the last frame was %" PRIu64, why[state], load(LAST));
	return fail(state ? 1 : 4, state ? "state %" PRIu64 " of the writer" : "the writer was lost; the last whole frame is %" PRIu64, state ? state : last);
}

static bool join(void)
{
	store(POLICY, (uint64_t)c.policy);
	store(JOIN, 1 /* next */);
	store(READER_STATE, 1);
	if (!await(START, 1, now() + options.timeout))
		return c.lost || load(WRITER_STATE) ? c.lost = true, told() && fail(4, "the writer has ended") : fail(4, "the writer has not admitted this reader");
	c.first = load(START), c.last = c.first - 1, c.next = 1;
	return true;
}

/* given is how many frames there are to take, where so many are released, or will be by the stream.
 * false is nonsense. A writer that drops this reader frees its own stream, which goes on publishing. */
static bool given(uint64_t *n, uint64_t released)
{
	*n = c.lost ? c.whole : load(PUBLISHED);
	if (*n < c.seen || *n >= (uint64_t)GIVEN || (c.policy != DROP_OLDEST && c.policy != LATEST && *n > released + c.slots))
		return dropped() ? told() : fail(1, "nonsense in a cursor: %" PRIu64 " frames were given where %" PRIu64 " were, %" PRIu64 " are released", *n, c.seen, released);
	c.seen = *n;
	return true;
}

/* describe is what an entry says of frame n: its slot and size. 0 if it is not whole, -1 nonsense. */
static int describe(const uint64_t *e, uint64_t n, uint64_t *slot, uint64_t *size, uint64_t *sequence)
{
	if (e[STAMP / 8] != 2 * n) {
		*sequence = c.first + n - 1, *slot = (*sequence - 1) % c.slots, *size = c.slot_size;
		return c.streams; /* of which the writer's stream has said nothing */
	}
	*sequence = e[SEQUENCE / 8], *slot = e[SLOT / 8], *size = e[BYTES / 8];
	if (*sequence > c.last && *slot < c.slots && *size <= c.slot_size && e[LENGTH / 8] <= MAX_USER)
		return 1;
	return fail(1, "nonsense in a cursor: frame %" PRIu64 " of %" PRIu64 " bytes in slot %" PRIu64, *sequence, *size, *slot), -1;
}

/* copy_out copies a frame to the host. */
static bool copy_out(uint64_t slot, uint64_t size)
{
	if (c.memory.driver == SOFT)
		memcpy(c.host, (const char *)(uintptr_t)c.memory.at + slot * c.stride, size);
	else if (!call(cuMemcpyDtoH_v2, c.host, c.memory.at + slot * c.stride, size))
		return false;
	__atomic_thread_fence(__ATOMIC_SEQ_CST); /* the copy before the looks */
	return true;
}

static bool put_out(const unsigned char *frame, uint64_t size)
{
	return fwrite(frame, 1, size, stdout) == size && !fflush(stdout) ? true : fail(1, "standard output: %s", strerror(errno));
}

/* read_frame copies frame n out, and releases it. *ok is false if it was passed by, or if this
 * reader was dropped meanwhile. */
static bool read_frame(uint64_t n, bool *ok)
{
	uint64_t e[6], slot, size, sequence, at = entry(n);
	for (int i = 0; i < 6; i++)
		e[i] = load(at + 8 * (uint64_t)i);
	int whole = load(at + STAMP) == e[0] ? describe(e, n, &slot, &size, &sequence) : 0;
	*ok = whole > 0;
	if (whole <= 0)
		return !whole && (c.policy == DROP_OLDEST || fail(1, "nonsense in a cursor: frame number %" PRIu64 " was given and is not whole", n));
	if (!copy_out(slot, size))
		return false;
	*ok = (c.policy != DROP_OLDEST || load(at + STAMP) == 2 * n) && !dropped();
	c.last = sequence;
	store(RELEASED, c.released = n);
	ring(WRITER_BELL);
	return !*ok || put_out(c.host, size);
}

/* read_newest claims the newest frame, copies it out, and releases it. It does nothing if the writer takes
 * the frame's slot: then there is a newer one. The writer marks a frame before it looks at the claim, and
 * this side claims the frame before it looks at the mark: all four are sequentially consistent, so one of the
 * two sees the other. */
static bool read_newest(void)
{
	uint64_t slot = c.lost ? find(c.whole) : load(NEWEST), e[6], frame, size, sequence;
	if (slot >= c.slots)
		return (!c.lost || told()) && fail(1, "nonsense in a cursor: the newest frame is in slot %" PRIu64 " of %" PRIu64, slot, c.slots);
	store(CLAIM, slot + 1);
	for (uint64_t i = 0; i < 6; i++)
		e[i] = load(entry_of_slot(slot) + 8 * i); /* the stamp is the first */
	if (e[0] % 2)
		return store(CLAIM, 0), true;
	uint64_t n = e[0] / 2;
	if (n < c.next || e[SLOT / 8] != slot)
		return fail(1, "nonsense in a cursor: frame number %" PRIu64 " after %" PRIu64 ", as that of slot %" PRIu64 " in slot %" PRIu64, n, c.next - 1, e[SLOT / 8], slot);
	if (describe(e, n, &frame, &size, &sequence) < 0 || !copy_out(slot, size))
		return false;
	bool whole = !dropped();
	c.last = sequence, c.next = n + 1;
	store(RELEASED, c.released = n);
	store(CLAIM, 0);
	ring(WRITER_BELL);
	return !whole || put_out(c.host, size);
}

/* skip_to gives back the frames before number n, for a reader of the newest in a channel for streams. */
static void skip_to(uint64_t n)
{
	if (n == c.next)
		return;
	c.next = n;
	store(RELEASED, c.released = n - 1);
	ring(WRITER_BELL);
}

/* by_host takes frames until there are no more. */
static bool by_host(void)
{
	bool passed = false;
	for (;;) {
		uint64_t published;
		if (dropped())
			return told();
		if (!given(&published, c.released))
			return false;
		if (passed && published > c.next) /* what lies between is old */
			c.next = published;
		passed = false;
		if (published < c.next) {
			if (c.lost)
				return told();
			await(PUBLISHED, c.next, now() + 1);
			continue;
		}
		if (c.policy == LATEST) {
			if (!read_newest())
				return false;
			continue;
		}
		if (options.policy == LATEST)
			skip_to(published);
		uint64_t n = c.policy == DROP_OLDEST && published - c.next >= c.slots ? published : c.next;
		bool ok;
		if (!read_frame(n, &ok))
			return false;
		c.next = n + 1, passed = !ok;
	}
}

/* queue has the stream wait for frame n, copy what the writer says of it and the frame, release it, and
 * say so in the word done. Slots follow each other. No call may wait for the stream, which waits for
 * frames that may never come: so copies are to registered memory, and the entry, which is in memory of
 * the host, goes by way of the device. */
static bool queue(CUstream stream, uint64_t n, uint64_t cursors, uint64_t done)
{
	uint64_t slot = (c.first + n - 2) % c.slots, room = (n - 1) % c.ahead, at = c.entries + room * ENTRY;
	unsigned char *to = c.host + room * (c.slot_size + ENTRY);
	struct op wait = {.operation = 4, .address = cursors + PUBLISHED, .value = n};
	struct op say[2] = {{.operation = 5, .address = cursors + RELEASED, .value = n}, {.operation = 5, .address = done, .value = n}};
	return call(cuStreamBatchMemOp_v2, stream, 1, &wait, 0) && call(cuMemcpyHtoDAsync_v2, at, c.words + entry(n), ENTRY, stream) &&
	       call(cuMemcpyDtoHAsync_v2, to, at, ENTRY, stream) &&
	       call(cuMemcpyDtoHAsync_v2, to + ENTRY, c.memory.at + slot * c.stride, c.slot_size, stream) &&
	       call(cuStreamBatchMemOp_v2, stream, 2, say, 0);
}

/* rescue frees the stream: again and again, because a dead process' device goes on writing for some
 * milliseconds. Only then may the words be unregistered. It is false if the stream does not go on. */
static bool rescue(CUstream stream, const uint64_t *done, uint64_t queued)
{
	for (double until = now() + 10; __atomic_load_n(done, __ATOMIC_SEQ_CST) < queued; usleep(100)) {
		CUresult result = cuStreamQuery(stream);
		if (result && result != 600 /* not ready */)
			return called(result, "cuStreamQuery");
		if (now() > until)
			return fail(1, "the stream has done %" PRIu64 " of %" PRIu64 " frames, and does not go on", *done, queued);
		store(PUBLISHED, (uint64_t)GIVEN);
	}
	return true;
}

/* put_out_copied puts out the frames up to number n, which the stream has copied. */
static bool put_out_copied(uint64_t n)
{
	for (; c.released < n && !(c.lost && c.released >= c.whole); c.released++) {
		unsigned char *from = c.host + c.released % c.ahead * (c.slot_size + ENTRY);
		uint64_t slot, size, sequence;
		if (describe((const uint64_t *)(void *)from, c.released + 1, &slot, &size, &sequence) <= 0 || !put_out(from + ENTRY, size))
			return false;
		c.last = sequence;
	}
	return true;
}

/* follow gives the stream frames ahead, and puts out those that it has copied: when the writer is gone,
 * those that were whole. The stream waits for nothing in the end, unless *stuck. */
static bool follow(CUstream stream, uint64_t cursors, const uint64_t *done, uint64_t done_at, bool *stuck)
{
	uint64_t queued = 0, published;
	bool ok = true;
	while (ok && !dropped() && !(c.lost && c.released >= c.whole)) {
		while (ok && queued < c.released + c.ahead && (!c.lost || queued < c.whole))
			ok = queue(stream, ++queued, cursors, done_at);
		uint64_t n = __atomic_load_n(done, __ATOMIC_SEQ_CST);
		ok = ok && given(&published, queued); /* the stream goes on by whatever it is */
		if (dropped()) /* while the stream copied, it may be */
			break;
		if (n > c.released) {
			ok = ok && put_out_copied(n);
			continue;
		}
		look_at_writer();
		if (!c.lost) {
			usleep(20);
			continue;
		}
		ok = ok && given(&published, queued);
		if (!rescue(stream, done, queued))
			return *stuck = true, false;
	}
	*stuck = !rescue(stream, done, queued);
	return !*stuck && call(cuStreamSynchronize, stream) && ok && told();
}

/* by_stream reads in the order of a stream. */
static bool by_stream(void)
{
	CUstream stream;
	uint64_t cursors, done_at;
	bool stuck;
	uint64_t *done = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (done == MAP_FAILED)
		return fail(1, "mmap: %s", strerror(errno));
	if (!call(cuMemHostRegister_v2, c.words, c.size, 3 /* portable, mapped */) || !call(cuMemHostGetDevicePointer_v2, &cursors, c.words, 0) ||
	    !call(cuMemHostRegister_v2, done, 4096, 3) || !call(cuMemHostGetDevicePointer_v2, &done_at, done, 0) ||
	    !call(cuMemHostRegister_v2, c.host, c.room, 3) || !call(cuMemAlloc_v2, &c.entries, c.ahead * ENTRY) ||
	    !call(cuStreamCreate, &stream, 1 /* non-blocking */))
		return false;
	store(READER_POLLS, 1);
	bool ok = follow(stream, cursors, done, done_at, &stuck);
	if (stuck)
		return false; /* what follows would wait for it */
	return call(cuStreamDestroy_v2, stream) && call(cuMemFree_v2, c.entries) && call(cuMemHostUnregister, c.host) &&
	       call(cuMemHostUnregister, c.words) && call(cuMemHostUnregister, done) && ok;
}

/* read_channel attaches, joins and reads. */
static bool read_channel(int driver)
{
	static int fds[MAX_CHUNKS + MAX_FDS];
	struct offer o = {0};
	uint32_t nfds = 0;
	int cursors = -1;
	unsigned char body[8];
	c.memory.driver = driver;
	bool ok = ask(c.sock, driver, &o, fds, &nfds, &cursors) && (driver == SOFT ? map_files : map_device)(&c.memory, &o, fds);
	if (ok) {
		c.words = mmap(NULL, o.cursor_size, PROT_READ | PROT_WRITE, MAP_SHARED, cursors, 0);
		ok = c.words != MAP_FAILED ? read_head(&o) : fail(1, "mapping the cursors: %s", strerror(errno));
	}
	while (nfds)
		close(fds[--nfds]);
	if (cursors >= 0)
		close(cursors);
	if (ok) {
		c.ahead = c.slots < MAX_AHEAD ? c.slots : MAX_AHEAD;
		c.room = options.stream ? c.ahead * (c.slot_size + ENTRY) : c.slot_size;
		c.host = mmap(NULL, c.room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		ok = c.host != MAP_FAILED || fail(1, "no memory for a copy of the frames: mmap: %s", strerror(errno));
	}
	if (!ok) {
		size_t n = strlen(failure) < 400 ? strlen(failure) : 400;
		unsigned char verdict[404], *p = put(put(verdict, 0, 2), n, 2);
		memcpy(p, failure, n);
		say(c.sock, VERDICT, verdict, 4 + n);
		return false;
	}
	put(body, o.generation, 8);
	if (!say(c.sock, MAPPED, body, 8) || !join() || !(options.stream ? by_stream() : by_host()))
		return false;
	return say(c.sock, FAREWELL, body, 0);
}

/* dial connects to the writer, for which it waits, and which has to be of our own user. */
static int dial(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	if (!options.socket || strlen(options.socket) >= sizeof address.sun_path)
		return fail(2, "want -socket, a path of 1 to 107 bytes"), -1;
	strcpy(address.sun_path, options.socket);
	for (double deadline = now() + options.timeout;; usleep(20000)) {
		int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
		struct ucred peer;
		socklen_t length = sizeof peer;
		if (sock >= 0 && !connect(sock, (struct sockaddr *)&address, sizeof address)) {
			if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &length) || peer.uid != geteuid())
				return fail(1, "%s: the writer is of another user", options.socket), -1;
			return sock;
		}
		int error = errno;
		close(sock);
		if (now() > deadline || (error != ENOENT && error != ECONNREFUSED))
			return fail(4, "%s: no writer came: %s", options.socket, strerror(error)), -1;
	}
}

static bool usage(int argc, char **argv)
{
	static const char *const policies[] = {"", "block", "drop-oldest", "drop-newest", "latest"};
	const char *driver = getenv("GPUFD_DRIVER");
	for (int i = 1; i < argc; i += 2) {
		const char *flag = argv[i] + !strncmp(argv[i], "--", 2), *value = i + 1 < argc ? argv[i + 1] : "";
		if (!strcmp(flag, "-socket"))
			options.socket = value;
		else if (!strcmp(flag, "-name") && strlen(value) < 256)
			options.name = value;
		else if (!strcmp(flag, "-driver"))
			driver = value;
		else if (!strcmp(flag, "-order") && (!strcmp(value, "host") || !strcmp(value, "stream")))
			options.stream = *value == 's';
		else if (!strcmp(flag, "-timeout") && atof(value) > 0 && atof(value) < 1e6)
			options.timeout = atof(value);
		else if (!strcmp(flag, "-policy")) {
			for (options.policy = LATEST; options.policy && strcmp(value, policies[options.policy]); options.policy--)
				continue;
			if (!options.policy)
				return fail(2, "-policy %s: want block, drop-oldest, drop-newest or latest", value);
		} else
			return fail(2, "%s %s is no flag of this program, or no value of it", argv[i], value);
	}
	if (options.stream && options.policy == LATEST)
		return fail(2, "-order stream queues frames ahead, and takes each: -policy latest is for -order host");
	if (driver && *driver && strcmp(driver, "auto") && strcmp(driver, "cuda") && strcmp(driver, "soft"))
		return fail(2, "-driver is auto, cuda or soft, not %s", driver);
	options.driver = !driver || !*driver || *driver == 'a' ? 0 : *driver == 'c' ? CUDA : SOFT;
	return true;
}

int main(int argc, char **argv)
{
	int driver = usage(argc, argv) ? choose() : 0;
	for (double deadline = now() + options.timeout; driver && !status;) {
		c.sock = dial();
		if (c.sock < 0 || read_channel(driver) || !no_offer || now() > deadline)
			break;
		close(c.sock);
		no_offer = false, status = 0; /* it may be made in a moment */
		usleep(20000);
	}
	if (status)
		fprintf(stderr, "channel.c: %s\n", failure);
	return status;
}
