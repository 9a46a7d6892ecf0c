/*
 * channel: what passing frames to other processes costs in plain C, by the words that
 * gpufd's channels have: a memfd that both processes map and register, whose words
 * streams wait for and write, and slots in virtual memory.
 *
 *	gcc -O2 -Wall -Wextra -I/usr/local/cuda/include -o channel channel.c -lcuda
 *	channel [-ptx FILE] [-on DEVICE]
 *
 * It is a rival of the benchmark, and answers each line on standard input with one JSON
 * object a line: "oneway READERS ROUNDS", "hosts ROUNDS", "frames SIZE SLOTS 0|1 COUNT";
 * bench/README.md has the protocol. FILE is check.ptx beside this. Words that belong
 * together are one call of the driver. Readers are on DEVICE, and the writer is on device 0.
 *
 * Readers are processes, started when they are needed, this program again with -reader. The
 * writer tells a reader what to do by struct task on a SOCK_SEQPACKET pair, with the
 * descriptors of the words and of the frames; the reader answers by struct reply.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

enum {
	READERS = 64,
	DEADLINE = 60,   /* seconds that anybody waits for anything */
	SOCKET = 3,      /* a reader's descriptor */
	CHUNK = 16,      /* frames that are queued before a stream begins: what is queued may be 35 calls for each,
			    and a driver that has no room for more waits for the stream */
	MARK = 16,       /* after so many frames a stream says how far it is */
	AHEAD = 64,      /* frames that a host queues and its stream has not done */
	BACK_SLOTS = 8,  /* where only numbers are passed */
	PAGE = 4096,
	ROUNDS = 1 << 20 /* at most */
};

/* Words of a reader's memfd, on lines of the cache of their own. */
enum { PUBLISHED = 0x80, RELEASED = 0x180, ANSWERED = 0x280, ANSWER_RELEASED = 0x380 };

enum what { STREAM, QUEUE, END, HOSTS, FRAMES };

struct task {
	enum what what;
	bool answers, copies;
	uint64_t size, stride, slots, bytes, count; /* bytes: of all the memory */
};

struct reply {
	char error[200];
	int64_t ns;
};

static const char *ptx = "c/check.ptx";
static CUstream stream;

static int on; /* the device of readers */
static int own_device; /* that of this process */

static bool open_device(void)
{
	CUdevice device;
	CUcontext context;
	return cu(cuInit(0), "cuInit") && cu(cuDeviceGet(&device, own_device), "cuDeviceGet") &&
	       cu(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain") &&
	       cu(cuCtxSetCurrent(context), "cuCtxSetCurrent") &&
	       cu(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
}

/* --- words --- */

struct words {
	char *p;
	CUdeviceptr at;
};

static _Atomic uint64_t *word(struct words *w, int off) { return (_Atomic uint64_t *)(w->p + off); }

/* words_map maps and registers a memfd. */
static bool words_map(struct words *w, int fd)
{
	w->p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (w->p == MAP_FAILED) {
		w->p = NULL;
		return fail("mmap: %s", strerror(errno));
	}
	return cu(cuMemHostRegister(w->p, PAGE, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP), "cuMemHostRegister") &&
	       cu(cuMemHostGetDevicePointer(&w->at, w->p, 0), "cuMemHostGetDevicePointer");
}

static bool words_free(struct words *w)
{
	bool ok = !w->at || cu(cuMemHostUnregister(w->p), "cuMemHostUnregister");
	if (w->p)
		munmap(w->p, PAGE);
	*w = (struct words){0};
	return ok;
}

/* The writer's sockets to its readers. */
static int readers[READERS];
static int started;

/* trouble is whether a reader has said that it failed, or is gone. */
static bool trouble(void)
{
	struct reply r;
	for (int i = 0; i < started; i++) {
		ssize_t got = recv(readers[i], &r, sizeof r, MSG_PEEK | MSG_DONTWAIT);
		if (got == 0 || (got == sizeof r && r.error[0]))
			return !fail("reader: %s", got ? r.error : "it is gone");
	}
	return false;
}

/* reach waits without pause until the word is n or more. */
static bool reach(_Atomic uint64_t *p, uint64_t n, int64_t *at)
{
	int64_t begin = now();
	for (unsigned looks = 1; atomic_load_explicit(p, memory_order_acquire) < n; looks++)
		if (looks % 65536 == 0 && (trouble() || now() - begin > DEADLINE * INT64_C(1000000000)))
			return fail("waiting for a word: nobody wrote it");
	if (at)
		*at = now();
	return true;
}

/* own is memory of this process that its stream writes to: how far it is, a gate, and how many
 * words of frames were wrong. */
enum { DONE = 0, GATE = 0x80, WRONG = 0x100 };
static struct words own;

static bool open_own(void)
{
	void *p;
	if (!cu(cuMemAllocHost(&p, PAGE), "cuMemAllocHost"))
		return false;
	own.p = p;
	return cu(cuMemHostGetDevicePointer(&own.at, p, 0), "cuMemHostGetDevicePointer");
}

static void reset_own(void) { memset(own.p, 0, PAGE); }

/* --- operations of a stream --- */

static CUstreamBatchMemOpParams ops[256];
static unsigned queued;

static void op(CUstreamBatchMemOpType type, CUdeviceptr at, uint64_t value)
{
	CUstreamBatchMemOpParams *o = &ops[queued++];
	memset(o, 0, sizeof *o);
	if (type == CU_STREAM_MEM_OP_WAIT_VALUE_64) {
		o->waitValue.operation = type;
		o->waitValue.address = at;
		o->waitValue.value64 = value;
		o->waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
		return;
	}
	o->writeValue.operation = type;
	o->writeValue.address = at;
	o->writeValue.value64 = value;
}

static void waits(struct words *w, int off, uint64_t value) { op(CU_STREAM_MEM_OP_WAIT_VALUE_64, w->at + off, value); }
static void writes(struct words *w, int off, uint64_t value) { op(CU_STREAM_MEM_OP_WRITE_VALUE_64, w->at + off, value); }

/* give gives the stream what was noted. */
static bool give(void)
{
	unsigned n = queued;
	CUstreamBatchMemOpParams *o = &ops[0];
	queued = 0;
	if (!n)
		return true;
	if (n > 1)
		return cu(cuStreamBatchMemOp(stream, n, ops, 0), "cuStreamBatchMemOp");
	if (o->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64)
		return cu(cuStreamWaitValue64(stream, o->waitValue.address, o->waitValue.value64, o->waitValue.flags), "cuStreamWaitValue64");
	return cu(cuStreamWriteValue64(stream, o->writeValue.address, o->writeValue.value64, 0), "cuStreamWriteValue64");
}

/* --- frames --- */

struct frames {
	CUdeviceptr at;
	uint64_t bytes;
	CUmemGenericAllocationHandle handle;
	bool have, mapped;
};

static bool frames_map(struct frames *f, int access)
{
	CUmemAccessDesc desc = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = own_device}, .flags = access};
	return cu(cuMemAddressReserve(&f->at, f->bytes, 0, 0, 0), "cuMemAddressReserve") &&
	       (f->mapped = cu(cuMemMap(f->at, f->bytes, 0, f->handle, 0), "cuMemMap")) &&
	       cu(cuMemSetAccess(f->at, f->bytes, &desc, 1), "cuMemSetAccess");
}

static bool frames_make(struct frames *f, uint64_t bytes, int *fd)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
	};
	f->bytes = bytes;
	f->have = cu(cuMemCreate(&f->handle, bytes, &prop, 0), "cuMemCreate");
	return f->have && frames_map(f, CU_MEM_ACCESS_FLAGS_PROT_READWRITE) &&
	       cu(cuMemExportToShareableHandle(fd, f->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), "cuMemExportToShareableHandle");
}

static bool frames_take(struct frames *f, uint64_t bytes, int fd)
{
	f->bytes = bytes;
	f->have = cu(cuMemImportFromShareableHandle(&f->handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), "cuMemImportFromShareableHandle");
	return f->have && frames_map(f, CU_MEM_ACCESS_FLAGS_PROT_READ);
}

static bool frames_free(struct frames *f)
{
	bool ok = !f->mapped || cu(cuMemUnmap(f->at, f->bytes), "cuMemUnmap");
	if (f->at)
		ok &= cu(cuMemAddressFree(f->at, f->bytes), "cuMemAddressFree");
	if (f->have)
		ok &= cu(cuMemRelease(f->handle), "cuMemRelease");
	*f = (struct frames){0};
	return ok;
}

/* --- messages --- */

static bool send_task(int sock, const struct task *t, int words_fd, int frames_fd)
{
	union {
		char bytes[CMSG_SPACE(2 * sizeof(int))];
		struct cmsghdr align;
	} control = {0};
	struct iovec data = {(void *)t, sizeof *t};
	struct msghdr m = {.msg_iov = &data, .msg_iovlen = 1};
	if (words_fd >= 0) {
		int fds[2] = {words_fd, frames_fd};
		m.msg_control = control.bytes, m.msg_controllen = sizeof control.bytes;
		struct cmsghdr *c = CMSG_FIRSTHDR(&m);
		*c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fds)};
		memcpy(CMSG_DATA(c), fds, sizeof fds);
	}
	return sendmsg(sock, &m, MSG_NOSIGNAL) == sizeof *t || fail("sendmsg: %s", strerror(errno));
}

/* receive_task is 0 at the end. */
static int receive_task(struct task *t, int fds[2])
{
	union {
		char bytes[CMSG_SPACE(2 * sizeof(int))];
		struct cmsghdr align;
	} control = {0};
	struct iovec data = {t, sizeof *t};
	struct msghdr m = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
	ssize_t got = recvmsg(SOCKET, &m, MSG_CMSG_CLOEXEC);
	fds[0] = fds[1] = -1;
	if (got == sizeof *t && CMSG_FIRSTHDR(&m))
		memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&m)), 2 * sizeof(int));
	return got == sizeof *t;
}

static void answer(int64_t ns)
{
	struct reply r = {.ns = ns};
	snprintf(r.error, sizeof r.error, "%.199s", failure);
	failure[0] = 0;
	if (send(SOCKET, &r, sizeof r, MSG_NOSIGNAL) != sizeof r)
		_exit(1);
}

static bool reply_of(int sock, struct reply *r)
{
	struct reply none;
	if (!r)
		r = &none;
	if (recv(sock, r, sizeof *r, 0) != sizeof *r)
		return fail("reader: it is gone, or does not answer");
	return !r->error[0] || fail("reader: %s", r->error);
}

/* --- a reader --- */

/* queue_answers queues so many frames behind frame n. */
static bool queue_answers(struct words *w, uint64_t n, const struct task *t, bool answers)
{
	bool ok = true;
	for (uint64_t i = n + 1; i <= n + t->count && ok; i++) {
		waits(w, PUBLISHED, i);
		ok = give();
		writes(w, RELEASED, i);
		ok = ok && give();
		if (!answers || !ok)
			continue;
		if (i > BACK_SLOTS) {
			waits(w, ANSWER_RELEASED, i - BACK_SLOTS);
			ok = give();
		}
		writes(w, ANSWERED, i);
		ok = ok && give();
	}
	return ok;
}

static bool answer_by_stream(struct words *w, const struct task *first)
{
	uint64_t n = 0;
	struct task t;
	int fds[2];
	answer(0);
	while (receive_task(&t, fds) && t.what == QUEUE) {
		if (!queue_answers(w, n, &t, first->answers))
			return false;
		n += t.count;
		answer(0);
	}
	return cu(cuStreamSynchronize(stream), "cuStreamSynchronize");
}

static bool answer_by_host(struct words *w, const struct task *t)
{
	answer(0);
	for (uint64_t i = 1; i <= t->count; i++) {
		if (!reach(word(w, PUBLISHED), i, NULL))
			return false;
		atomic_store_explicit(word(w, RELEASED), i, memory_order_release);
		atomic_store_explicit(word(w, ANSWERED), i, memory_order_release);
	}
	return true;
}

static CUfunction check;

static bool load_check(void)
{
	static char text[1 << 16];
	CUmodule module;
	if (check)
		return true;
	FILE *f = fopen(ptx, "r");
	if (!f)
		return fail("%s: %s", ptx, strerror(errno));
	text[fread(text, 1, sizeof text - 1, f)] = 0;
	fclose(f);
	return cu(cuModuleLoadData(&module, text), "cuModuleLoadData") && cu(cuModuleGetFunction(&check, module, "check_words"), "cuModuleGetFunction");
}

/* use has a kernel read the frame, or copies it. */
static bool use(const struct task *t, CUdeviceptr frame, uint32_t n, void *host)
{
	if (t->copies)
		return cu(cuMemcpyDtoHAsync(host, frame, t->size, stream), "cuMemcpyDtoHAsync");
	uint64_t words = t->size / 4;
	uint64_t blocks = (words + 255) / 256;
	CUdeviceptr wrong = own.at + WRONG;
	void *params[] = {&frame, &words, &n, &wrong};
	return cu(cuLaunchKernel(check, blocks < 1024 ? blocks : 1024, 1, 1, 256, 1, 1, 0, stream, params, NULL), "cuLaunchKernel");
}

static bool flow(struct words *w, struct frames *f, const struct task *t, void *host, int64_t *ns)
{
	uint64_t warm = t->count / 4 / MARK * MARK;
	int64_t begin = 0, end, at;
	for (uint64_t n = 1; n <= t->count; n++) {
		waits(w, PUBLISHED, n);
		if (!give() || !use(t, f->at + (n - 1) % t->slots * t->stride, n, host))
			return false;
		writes(w, RELEASED, n);
		if (!give())
			return false;
		if (n % MARK)
			continue;
		writes(&own, DONE, n);
		if (!give())
			return false;
		if (n < AHEAD)
			continue;
		if (!reach(word(&own, DONE), n - AHEAD, &at))
			return false;
		if (n - AHEAD == warm)
			begin = at;
	}
	if (!reach(word(&own, DONE), t->count, &end))
		return false;
	*ns = (end - begin) / (int64_t)(t->count - warm);
	return true;
}

static bool take_frames(struct words *w, struct frames *f, const struct task *t, int64_t *ns)
{
	void *host = NULL;
	reset_own();
	if (!load_check() || !cu(cuMemAllocHost(&host, t->size), "cuMemAllocHost"))
		return false;
	answer(0);
	bool ok = flow(w, f, t, host, ns);
	if (ok && atomic_load(word(&own, WRONG)))
		ok = fail("frames: words were wrong");
	uint32_t *words = host;
	if (ok && t->copies && (words[0] != t->count || words[t->size / 4 - 1] != t->count))
		ok = fail("frames: the last one is another");
	return cu(cuMemFreeHost(host), "cuMemFreeHost") && ok;
}

static bool serve_task(const struct task *t, int fds[2], int64_t *ns)
{
	struct words w = {0};
	struct frames f = {0};
	bool ok = words_map(&w, fds[0]) && frames_take(&f, t->bytes, fds[1]);
	if (ok && t->what == STREAM)
		ok = answer_by_stream(&w, t);
	else if (ok && t->what == HOSTS)
		ok = answer_by_host(&w, t);
	else if (ok)
		ok = take_frames(&w, &f, t, ns);
	if (!ok && w.p) /* frees what waits, or unregistering would hang */
		for (int i = 0; i < 100; i++, usleep(100)) {
			atomic_store(word(&w, PUBLISHED), INT64_MAX);
			atomic_store(word(&w, ANSWER_RELEASED), INT64_MAX);
		}
	ok &= frames_free(&f);
	ok &= words_free(&w);
	close(fds[0]);
	close(fds[1]);
	return ok;
}

static int reader(void)
{
	struct task t;
	int fds[2];
	if (prctl(PR_SET_PDEATHSIG, SIGKILL))
		return 1;
	if (open_device())
		open_own();
	bool ok = !failure[0];
	answer(0);
	while (ok && receive_task(&t, fds)) {
		int64_t ns = 0;
		ok = serve_task(&t, fds, &ns);
		answer(ns);
	}
	return !ok;
}

/* --- the writer --- */

/* need has n readers' processes run. */
static bool need(char *self, int n)
{
	struct timeval deadline = {.tv_sec = DEADLINE};
	char device[12];
	snprintf(device, sizeof device, "%d", on);
	for (; started < n; started++) {
		int pair[2];
		if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) ||
		    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof deadline))
			return fail("socketpair: %s", strerror(errno));
		pid_t child = vfork();
		if (!child) {
			if (pair[1] == SOCKET ? fcntl(SOCKET, F_SETFD, 0) >= 0 : dup2(pair[1], SOCKET) >= 0)
				execl("/proc/self/exe", self, "-reader", "1", "-ptx", ptx, "-on", device, NULL);
			_exit(1);
		}
		close(pair[1]);
		readers[started] = pair[0];
		if (child < 0 || !reply_of(pair[0], NULL))
			return fail("starting a reader: %s", strerror(errno));
	}
	return true;
}

/* link is what the writer has in common with a number of readers. */
struct link {
	int n, fds[READERS + 1]; /* the last is that of the frames */
	struct words w[READERS];
	struct frames f;
};

static bool link_open(struct link *l, int n, struct task *t)
{
	l->n = n;
	for (int i = 0; i <= n; i++)
		l->fds[i] = -1;
	t->stride = (t->size + 255) / 256 * 256;
	t->bytes = (t->stride * t->slots + (2 << 20) - 1) >> 21 << 21;
	if (!frames_make(&l->f, t->bytes, &l->fds[n]))
		return false;
	for (int i = 0; i < n; i++) {
		l->fds[i] = memfd_create("words", MFD_CLOEXEC | MFD_ALLOW_SEALING);
		if (l->fds[i] < 0 || ftruncate(l->fds[i], PAGE) || fcntl(l->fds[i], F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW))
			return fail("memfd_create: %s", strerror(errno));
		t->answers = i == n - 1;
		if (!words_map(&l->w[i], l->fds[i]) || !send_task(readers[i], t, l->fds[i], l->fds[n]) || !reply_of(readers[i], NULL))
			return false;
	}
	reset_own();
	return true;
}

static bool link_close(struct link *l)
{
	bool ok = true;
	for (int i = 0; i < l->n; i++)
		ok &= words_free(&l->w[i]);
	ok &= frames_free(&l->f);
	for (int i = 0; i <= l->n; i++)
		if (l->fds[i] >= 0)
			close(l->fds[i]);
	return ok;
}

/* publish queues what acquires and publishes frame n. */
static bool acquire(struct link *l, uint64_t n, uint64_t slots)
{
	for (int i = 0; i < l->n && n > slots; i++)
		waits(&l->w[i], RELEASED, n - slots);
	return give();
}

static bool publish(struct link *l, uint64_t n)
{
	for (int i = 0; i < l->n; i++)
		writes(&l->w[i], PUBLISHED, n);
	return give();
}

/* queue_chunk has all sides queue what is behind frame n, behind a gate. */
static bool queue_chunk(struct link *l, uint64_t n)
{
	struct task t = {.what = QUEUE, .count = CHUNK};
	struct words *back = &l->w[l->n - 1];
	for (int i = 0; i < l->n; i++)
		if (!send_task(readers[i], &t, -1, -1))
			return false;
	for (int i = 0; i < l->n; i++)
		if (!reply_of(readers[i], NULL))
			return false;
	waits(&own, GATE, n + 1);
	if (!give())
		return false;
	for (uint64_t i = n + 1; i <= n + CHUNK; i++) {
		if (!acquire(l, i, BACK_SLOTS) || !publish(l, i))
			return false;
		waits(back, ANSWERED, i);
		bool ok = give();
		writes(back, ANSWER_RELEASED, i);
		ok = ok && give();
		writes(&own, DONE, i);
		if (!ok || !give())
			return false;
	}
	return true;
}

static int64_t each[ROUNDS];

static bool pass_streams(struct link *l, uint64_t rounds, uint64_t *count)
{
	int64_t before, at;
	for (uint64_t n = 0; n < rounds; n += CHUNK) {
		if (!queue_chunk(l, n))
			return false;
		atomic_store(word(&own, GATE), n + 1);
		if (!reach(word(&own, DONE), n + 1, &before))
			return false;
		for (uint64_t i = n + 2; i <= n + CHUNK; i++, before = at) {
			if (!reach(word(&own, DONE), i, &at))
				return false;
			each[(*count)++] = (at - before) / 2;
		}
	}
	struct task end = {.what = END};
	for (int i = 0; i < l->n; i++)
		if (!send_task(readers[i], &end, -1, -1) || !reply_of(readers[i], NULL))
			return false;
	return true;
}

static bool pass_hosts(struct link *l, uint64_t rounds, uint64_t *count)
{
	struct words *w = &l->w[0];
	for (uint64_t i = 1; i <= rounds; i++) {
		int64_t begin = now();
		atomic_store_explicit(word(w, PUBLISHED), i, memory_order_release);
		if (!reach(word(w, ANSWERED), i, NULL))
			return false;
		each[(*count)++] = now() - begin;
	}
	return reply_of(readers[0], NULL);
}

static bool write_frames(struct link *l, const struct task *t, int64_t *ns)
{
	struct reply r;
	for (uint64_t n = 1; n <= t->count; n++) {
		if (!acquire(l, n, t->slots) ||
		    !cu(cuMemsetD32Async(l->f.at + (n - 1) % t->slots * t->stride, (unsigned)n, t->size / 4, stream), "cuMemsetD32Async") ||
		    !publish(l, n))
			return false;
		if (n % MARK)
			continue;
		writes(&own, DONE, n);
		if (!give() || (n > AHEAD && !reach(word(&own, DONE), n - AHEAD, NULL)))
			return false;
	}
	if (!reach(word(&own, DONE), t->count, NULL) || !reply_of(readers[0], &r))
		return false;
	*ns = r.ns;
	return true;
}

static void print_answer(bool ok, int64_t ns, uint64_t count)
{
	if (!ok) {
		print_error();
		return;
	}
	printf("{\"ns\":%" PRId64 ",\"each\":[", ns);
	for (uint64_t i = 0; i < count; i++)
		printf("%s%" PRId64, i ? "," : "", each[i]);
	puts("]}");
}

/* parse is how many readers the line takes; 0 is a line that asks nothing. */
static int parse(const char *line, struct task *t)
{
	uint64_t a, b, c, d;
	*t = (struct task){.size = 256, .slots = BACK_SLOTS};
	if (sscanf(line, "oneway %" SCNu64 " %" SCNu64, &a, &b) == 2 && a && a <= READERS && b && b <= ROUNDS && b % CHUNK == 0)
		return t->what = STREAM, t->count = b, (int)a;
	if (sscanf(line, "hosts %" SCNu64, &a) == 1 && a && a <= ROUNDS)
		return t->what = HOSTS, t->count = a, 1;
	if (sscanf(line, "frames %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, &a, &b, &c, &d) == 4 && a && a % 4 == 0 && b && c < 2 &&
	    d >= 2 * AHEAD && d % MARK == 0)
		return t->what = FRAMES, t->size = a, t->slots = b, t->copies = c, t->count = d, 1;
	fail("no such request: want oneway READERS ROUNDS, hosts ROUNDS or frames SIZE SLOTS 0|1 COUNT");
	return 0;
}

/* handle answers one line. After a failure nothing is certain any more. */
static bool handle(char *self, const char *line)
{
	struct task t;
	struct link l = {0};
	int64_t ns = 0;
	uint64_t count = 0;
	failure[0] = 0;
	int n = parse(line, &t);
	if (!n) {
		print_answer(false, 0, 0);
		return true;
	}
	bool ok = need(self, n) && link_open(&l, n, &t);
	if (ok && t.what == STREAM)
		ok = pass_streams(&l, t.count, &count);
	else if (ok && t.what == HOSTS)
		ok = pass_hosts(&l, t.count, &count);
	else if (ok)
		ok = write_frames(&l, &t, &ns);
	ok = ok && cu(cuStreamSynchronize(stream), "cuStreamSynchronize") && link_close(&l);
	print_answer(ok, ns, count);
	return ok;
}

int main(int argc, char **argv)
{
	bool child = false;
	for (int i = 1; i < argc; i += 2) {
		if (i + 1 < argc && !strcmp(argv[i], "-ptx"))
			ptx = argv[i + 1];
		else if (i + 1 < argc && !strcmp(argv[i], "-on"))
			on = atoi(argv[i + 1]);
		else if (i + 1 < argc && !strcmp(argv[i], "-reader"))
			child = true;
		else
			return fprintf(stderr, "usage: %s [-ptx FILE] [-on DEVICE]\n", argv[0]), 2;
	}
	if (child) {
		own_device = on;
		return reader();
	}
	setvbuf(stdout, NULL, _IOFBF, 1 << 16);
	int version = 0;
	if (!open_device() || !open_own() || !cu(cuDriverGetVersion(&version), "cuDriverGetVersion")) {
		print_answer(false, 0, 0);
		return 1;
	}
	printf("{\"ready\":true,\"name\":\"c\",\"info\":\"CUDA %d.%d\"}\n", version / 1000, version % 1000 / 10);
	fflush(stdout);
	char line[128];
	while (fgets(line, sizeof line, stdin)) {
		bool ok = handle(argv[0], line);
		fflush(stdout);
		if (!ok)
			_exit(1); /* streams may wait for ever */
	}
	for (int i = 0; i < started; i++)
		close(readers[i]);
	while (wait(NULL) > 0)
		;
	return 0;
}
