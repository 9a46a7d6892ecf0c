/*
 * handoff: what handing GPU memory to another process costs in plain C.
 *
 *	gcc -O2 -Wall -Wextra -pthread -I/usr/local/cuda/include -o handoff handoff.c -lcuda
 *	handoff -mode inside|before|legacy
 *
 * It is a rival of the benchmark: it answers one JSON object a line on standard
 * output to each line "handoff SIZE CHUNKS" on standard input, and ends with it.
 * Memory is shared in one of three ways:
 *
 *	before	virtual memory, exported to file descriptors before the clock starts
 *	inside	the same, exported while the clock runs
 *	legacy	cuMemAlloc and cuIpcGetMemHandle, which is cheap and inside the time
 *
 * The consumer is forked before cuInit, so each process has a driver and a primary
 * context of its own. They talk over one SOCK_SEQPACKET pair, in this order:
 *
 *	consumer → producer	hello: a string, empty or what failed
 *	producer → consumer	nudge: struct offer of no chunks, before the buffer is made
 *	consumer → producer	a string, empty
 *	producer → consumer	struct offer with up to 64 descriptors, as often as needed
 *	consumer → producer	acknowledgement: a string, empty or what failed
 *	consumer → producer	struct report, if the acknowledgement was empty
 *
 * A nudge wakes the consumer before the buffer is made: ours connects then. The
 * clock runs from the first offer (or export) to the acknowledgement. Mapping
 * is read-write and access is set once for the whole range. What need not be
 * waited for comes after the acknowledgement: descriptors and handles are let go
 * with the mapping. Of each step the answer holds the first start and the sum of
 * the times; "receive" counts from the arrival of the first offer.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	OFFER_FDS = 64,      /* descriptors in one message; Linux allows 253 */
	DEADLINE = 60,       /* seconds to wait for the other process */
	UNIT = 2 << 20,      /* bytes; every chunk is a multiple of it */
	MAX_CHUNKS = 1 << 20 /* 2 TiB of the smallest chunks */
};

#include "driver.h"

enum mode { INSIDE, BEFORE, LEGACY };
static const char *const mode_names[] = {"inside", "before", "legacy"};

/* step is how long a named part took, in ns of CLOCK_MONOTONIC. */
struct step {
	char name[12];
	int64_t at, ns;
};

struct steps {
	int n;
	struct step step[12];
};

/* offer goes with the descriptors: size is that of all chunks, and no call tells
 * the size of an imported allocation. */
struct offer {
	uint64_t size;
	uint32_t chunks;
	uint32_t fds;          /* in this message; none for legacy */
	CUipcMemHandle handle; /* for legacy */
};

/* report is what the consumer read and how long it took, sent after the time. */
struct report {
	char error[400];
	uint64_t salt[2];
	struct steps steps;
};

/* buffer is memory of one process, made or imported. The counts say how much of
 * it is there, so that a failure half-way can be undone. */
struct buffer {
	uint64_t size;
	uint32_t chunks;
	CUdeviceptr at; /* the reservation; for legacy the memory itself */
	CUmemGenericAllocationHandle *handle;
	int *fd;
	uint32_t handles, maps, fds;
};

/* find is the step of that name, or NULL. */
static struct step *find(struct steps *s, const char *name)
{
	for (int i = 0; i < s->n; i++)
		if (!strcmp(s->step[i].name, name))
			return &s->step[i];
	return NULL;
}

/* took adds the time since start to the step of that name. */
static void took(struct steps *s, const char *name, int64_t start)
{
	int64_t ns = now() - start;
	struct step *step = find(s, name);
	if (!step) {
		if (s->n == sizeof s->step / sizeof s->step[0])
			abort();
		step = &s->step[s->n++];
		snprintf(step->name, sizeof step->name, "%s", name);
		step->at = start;
	}
	step->ns += ns;
}

/* --- memory, on both sides --- */

static bool buffer_init(struct buffer *b, uint64_t size, uint32_t chunks)
{
	*b = (struct buffer){.size = size, .chunks = chunks};
	b->handle = calloc(chunks, sizeof *b->handle);
	b->fd = calloc(chunks, sizeof *b->fd);
	return b->handle && b->fd ? true : fail("calloc: %s", strerror(errno));
}

static bool reserve(struct buffer *b, struct steps *s)
{
	int64_t start = now();
	if (!cu(cuMemAddressReserve(&b->at, b->size, 0, 0, 0), "cuMemAddressReserve"))
		return false;
	took(s, "reserve", start);
	return true;
}

static bool map(struct buffer *b, struct steps *s)
{
	uint64_t chunk = b->size / b->chunks;
	int64_t start = now();
	for (; b->maps < b->chunks; b->maps++)
		if (!cu(cuMemMap(b->at + b->maps * chunk, chunk, 0, b->handle[b->maps], 0), "cuMemMap"))
			return false;
	took(s, "map", start);
	return true;
}

static bool set_access(struct buffer *b, struct steps *s)
{
	CUmemAccessDesc access = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	int64_t start = now();
	if (!cu(cuMemSetAccess(b->at, b->size, &access, 1), "cuMemSetAccess"))
		return false;
	took(s, "access", start);
	return true;
}

/* buffer_map maps the chunks side by side, read-write for device 0. */
static bool buffer_map(struct buffer *b, struct steps *s)
{
	return reserve(b, s) && map(b, s) && set_access(b, s);
}

/* buffer_free undoes what there is and goes on after a failure. */
static bool buffer_free(struct buffer *b, struct steps *s)
{
	bool ok = true;
	int64_t start = now();
	for (uint32_t i = 0; i < b->maps; i++) {
		uint64_t chunk = b->size / b->chunks;
		ok &= cu(cuMemUnmap(b->at + i * chunk, chunk), "cuMemUnmap");
	}
	if (b->at)
		ok &= cu(cuMemAddressFree(b->at, b->size), "cuMemAddressFree");
	took(s, "unmap", start);

	start = now();
	for (uint32_t i = 0; i < b->handles; i++)
		ok &= cu(cuMemRelease(b->handle[i]), "cuMemRelease");
	for (uint32_t i = 0; i < b->fds; i++)
		close(b->fd[i]);
	took(s, "release", start);
	free(b->handle);
	free(b->fd);
	*b = (struct buffer){0};
	return ok;
}

static CUcontext context;

static bool open_device(void)
{
	CUdevice device;
	return cu(cuInit(0), "cuInit") && cu(cuDeviceGet(&device, 0), "cuDeviceGet") &&
	       cu(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain") &&
	       cu(cuCtxSetCurrent(context), "cuCtxSetCurrent");
}

/* --- messages --- */

/* transmit sends one record with descriptors or none. */
static bool transmit(int sock, const void *data, size_t n, const int *fds, uint32_t nfds)
{
	union {
		char bytes[CMSG_SPACE(OFFER_FDS * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec iov = {.iov_base = (void *)data, .iov_len = n};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
	if (nfds) {
		m.msg_control = control.bytes;
		m.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
		struct cmsghdr *c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(nfds * sizeof(int));
		memcpy(CMSG_DATA(c), fds, nfds * sizeof(int));
	}
	ssize_t sent;
	do
		sent = sendmsg(sock, &m, MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	if (sent < 0 && errno == EPIPE)
		return fail("the other process is gone");
	return sent == (ssize_t)n ? true : fail("sendmsg: %s", strerror(errno));
}

/* await is a record with no descriptors: its length, or -1 where the other process
 * is gone or silent. */
static ssize_t await(int sock, void *data, size_t n)
{
	struct iovec iov = {.iov_base = data, .iov_len = n};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t got;
	do
		got = recvmsg(sock, &m, 0);
	while (got < 0 && errno == EINTR);
	if (got > 0)
		return got;
	if (got < 0 && errno == EAGAIN)
		fail("no answer from the other process within %d s", DEADLINE);
	else
		fail("the other process is gone");
	return -1;
}

/* say sends the failure, "" if there is none, with its terminating zero: a record of
 * no bytes would look like the end. */
static bool say(int sock)
{
	char text[sizeof failure];
	memcpy(text, failure, sizeof text);
	return transmit(sock, text, strlen(text) + 1, NULL, 0);
}

/* receive_offer takes one offer and appends its descriptors to fds, which has room
 * for OFFER_FDS. 1 if there was one, 0 at the end, -1 with errno set. */
static int receive_offer(int sock, struct offer *o, int *fds)
{
	union {
		char bytes[CMSG_SPACE(OFFER_FDS * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec iov = {.iov_base = o, .iov_len = sizeof *o};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1,
			   .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
	ssize_t got;
	do
		got = recvmsg(sock, &m, MSG_CMSG_CLOEXEC);
	while (got < 0 && errno == EINTR);
	if (got <= 0)
		return (int)got;
	errno = EPROTO;
	if (got != sizeof *o || m.msg_flags & (MSG_TRUNC | MSG_CTRUNC) || o->fds > OFFER_FDS)
		return -1;
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	if (!o->fds)
		return c ? -1 : 1;
	if (!c || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(o->fds * sizeof(int)))
		return -1;
	memcpy(fds, CMSG_DATA(c), o->fds * sizeof(int));
	return 1;
}

/* --- the consumer --- */

/* die ends the consumer where the conversation cannot go on; the producer sees the
 * connection end. */
static void die(const char *what)
{
	fprintf(stderr, "handoff: consumer: %s: %s\n", what, strerror(errno));
	_exit(1);
}

/* import turns the descriptors that came with one offer into handles. */
static bool import(struct buffer *b, struct steps *s)
{
	int64_t start = now();
	for (; b->handles < b->fds; b->handles++)
		if (!cu(cuMemImportFromShareableHandle(&b->handle[b->handles], (void *)(uintptr_t)b->fd[b->handles],
						       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
			"cuMemImportFromShareableHandle"))
			return false;
	took(s, "import", start);
	return true;
}

/* take_vmm imports each message's descriptors while the next is on its way, then
 * maps. It takes every message of the handoff even after a failure, so that the
 * next handoff begins with its own. */
static bool take_vmm(int sock, const struct offer *first, int *fds, struct buffer *b, struct steps *s)
{
	struct offer o = *first;
	bool ok = buffer_init(b, o.size, o.chunks);
	for (uint32_t seen = 0;;) {
		seen += o.fds;
		if (ok) {
			memcpy(b->fd + b->fds, fds, o.fds * sizeof(int));
			b->fds += o.fds;
			ok = import(b, s);
		} else {
			for (uint32_t i = 0; i < o.fds; i++)
				close(fds[i]);
		}
		if (seen == first->chunks)
			return ok && buffer_map(b, s);
		int64_t start = now();
		if (receive_offer(sock, &o, fds) <= 0 || !o.fds || o.fds > first->chunks - seen)
			die("the rest of an offer");
		took(s, "receive", start);
	}
}

static bool take_legacy(const struct offer *o, struct buffer *b, struct steps *s)
{
	*b = (struct buffer){.size = o->size};
	int64_t start = now();
	if (!cu(cuIpcOpenMemHandle(&b->at, o->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), "cuIpcOpenMemHandle"))
		return false;
	took(s, "import", start);
	return true;
}

static bool drop_legacy(struct buffer *b, struct steps *s)
{
	int64_t start = now();
	if (b->at && !cu(cuIpcCloseMemHandle(b->at), "cuIpcCloseMemHandle"))
		return false;
	took(s, "close", start);
	return true;
}

/* read_salts copies the first and the last 8 bytes from the device. */
static bool read_salts(const struct buffer *b, uint64_t salt[2])
{
	return cu(cuMemcpyDtoH(&salt[0], b->at, 8), "cuMemcpyDtoH of the first bytes") &&
	       cu(cuMemcpyDtoH(&salt[1], b->at + b->size - 8, 8), "cuMemcpyDtoH of the last bytes");
}

static void consume(int sock)
{
	open_device();
	if (!say(sock) || failure[0])
		_exit(1);
	for (;;) {
		struct offer o;
		int fds[OFFER_FDS];
		int got = receive_offer(sock, &o, fds);
		if (got < 0 && errno == EAGAIN)
			continue; /* idle between two handoffs */
		if (got <= 0)
			_exit(got ? 1 : 0);

		struct buffer b;
		struct report r = {0};
		failure[0] = 0;
		if (!o.chunks) {
			if (!say(sock))
				die("the answer to a nudge");
			continue;
		}
		took(&r.steps, "receive", now());
		bool legacy = !o.fds;
		bool ok = legacy ? take_legacy(&o, &b, &r.steps) : take_vmm(sock, &o, fds, &b, &r.steps);
		int64_t start = now();
		if (!say(sock))
			die("the acknowledgement");
		took(&r.steps, "ack", start);

		if (ok)
			read_salts(&b, r.salt);
		if (legacy)
			drop_legacy(&b, &r.steps);
		else
			buffer_free(&b, &r.steps);
		memcpy(r.error, failure, sizeof r.error);
		if (ok && !transmit(sock, &r, sizeof r, NULL, 0))
			die("the report");
	}
}

/* --- the producer --- */

static bool make_legacy(struct buffer *b, uint64_t size, struct steps *s)
{
	*b = (struct buffer){.size = size};
	int64_t start = now();
	if (!cu(cuMemAlloc(&b->at, size), "cuMemAlloc"))
		return false;
	took(s, "create", start);
	return true;
}

static bool free_legacy(struct buffer *b, struct steps *s)
{
	int64_t start = now();
	if (b->at && !cu(cuMemFree(b->at), "cuMemFree"))
		return false;
	took(s, "release", start);
	return true;
}

static bool make_vmm(struct buffer *b, uint64_t size, uint32_t chunks, struct steps *s)
{
	if (!buffer_init(b, size, chunks))
		return false;
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
	};
	int64_t start = now();
	for (; b->handles < chunks; b->handles++)
		if (!cu(cuMemCreate(&b->handle[b->handles], size / chunks, &prop, 0), "cuMemCreate"))
			return false;
	took(s, "create", start);
	return buffer_map(b, s);
}

/* export_all exports every chunk before the first is sent: on an H200 exports here
 * and imports there hold each other up, and take longer side by side. */
static bool export_all(struct buffer *b, struct steps *s)
{
	int64_t start = now();
	for (; b->fds < b->chunks; b->fds++)
		if (!cu(cuMemExportToShareableHandle(&b->fd[b->fds], b->handle[b->fds],
						     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
			"cuMemExportToShareableHandle"))
			return false;
	took(s, "export", start);
	return true;
}

/* give_vmm sends all descriptors. */
static bool give_vmm(int sock, struct buffer *b, struct steps *s)
{
	for (uint32_t i = 0; i < b->chunks;) {
		uint32_t n = b->chunks - i < OFFER_FDS ? b->chunks - i : OFFER_FDS;
		struct offer o = {.size = b->size, .chunks = b->chunks, .fds = n};
		int64_t start = now();
		bool sent = transmit(sock, &o, sizeof o, b->fd + i, n);
		took(s, "send", start);
		if (!sent)
			return false;
		i += n;
	}
	return true;
}

static bool give_legacy(int sock, struct buffer *b, struct steps *s)
{
	struct offer o = {.size = b->size, .chunks = 1};
	int64_t start = now();
	if (!cu(cuIpcGetMemHandle(&o.handle, b->at), "cuIpcGetMemHandle"))
		return false;
	took(s, "export", start);
	start = now();
	bool sent = transmit(sock, &o, sizeof o, NULL, 0);
	took(s, "send", start);
	return sent;
}

/* salted fills the buffer, then writes a new salt into the first and the last 8
 * bytes, and waits. */
static bool salted(const struct buffer *b, uint64_t *salt)
{
	if (getrandom(salt, sizeof *salt, 0) != sizeof *salt)
		return fail("getrandom: %s", strerror(errno));
	return cu(cuMemsetD8(b->at, 0x5a, b->size), "cuMemsetD8") &&
	       cu(cuMemcpyHtoD(b->at, salt, 8), "cuMemcpyHtoD of the first bytes") &&
	       cu(cuMemcpyHtoD(b->at + b->size - 8, salt, 8), "cuMemcpyHtoD of the last bytes") &&
	       cu(cuCtxSynchronize(), "cuCtxSynchronize");
}

static void print_steps(const char *side, const struct steps *s, int64_t t0)
{
	for (int i = 0; i < s->n; i++)
		printf("{\"side\":\"%s\",\"name\":\"%s\",\"at\":%" PRId64 ",\"ns\":%" PRId64 "},", side,
		       s->step[i].name, s->step[i].at - t0, s->step[i].ns);
}

/* print_answer ends with the reply: from the acknowledgement being sent to its
 * being read. */
static void print_answer(const struct steps *producer, struct steps *consumer, int64_t t0, int64_t t1)
{
	struct step *ack = find(consumer, "ack");
	int64_t sent = ack ? ack->at : t1;
	printf("{\"ns\":%" PRId64 ",\"steps\":[", t1 - t0);
	print_steps("producer", producer, t0);
	print_steps("consumer", consumer, t0);
	printf("{\"side\":\"producer\",\"name\":\"reply\",\"at\":%" PRId64 ",\"ns\":%" PRId64 "}]}\n", sent - t0, t1 - sent);
	fflush(stdout);
}

/* nudge wakes the consumer and waits until it is awake. */
static bool nudge(int sock)
{
	struct offer none = {0};
	char answer[sizeof failure];
	return transmit(sock, &none, sizeof none, NULL, 0) && await(sock, answer, sizeof answer) > 0 &&
	       (!answer[0] || fail("consumer: %.*s", (int)sizeof answer - 1, answer));
}

/* exchange hands b over and has the salt compared. Where it fails, *alive says
 * whether the consumer waits for the next handoff: not if it was left half-way. */
static bool exchange(int sock, enum mode mode, struct buffer *b, uint64_t salt, struct steps *s, struct report *r,
		     int64_t *t0, int64_t *t1, bool *alive)
{
	char ack[sizeof failure];
	*t0 = now();
	bool given = mode == INSIDE ? export_all(b, s) : true;
	given = given && (mode == LEGACY ? give_legacy(sock, b, s) : give_vmm(sock, b, s));
	*alive = !find(s, "send");
	if (!given)
		return false;
	if (await(sock, ack, sizeof ack) < 0)
		return false;
	*t1 = now();
	if (ack[0]) {
		*alive = true;
		return fail("consumer: %.*s", (int)sizeof ack - 1, ack);
	}
	if (await(sock, r, sizeof *r) != sizeof *r)
		return fail("a report of the wrong length");
	*alive = true;
	if (r->error[0])
		return fail("consumer: %s", r->error);
	if (r->salt[0] != salt || r->salt[1] != salt)
		return fail("salt: wrote %016" PRIx64 ", the consumer read %016" PRIx64 " and %016" PRIx64, salt,
			    r->salt[0], r->salt[1]);
	return true;
}

/* handoff does one and prints the answer. False where no other can follow. */
static bool handoff(int sock, enum mode mode, uint64_t size, uint32_t chunks)
{
	struct buffer b = {0};
	struct steps s = {0};
	struct report r = {0};
	uint64_t salt = 0;
	int64_t t0 = 0, t1 = 0;
	bool alive = nudge(sock);

	bool ok = alive && (mode == LEGACY ? make_legacy(&b, size, &s) : make_vmm(&b, size, chunks, &s));
	ok = ok && salted(&b, &salt);
	if (mode == BEFORE)
		ok = ok && export_all(&b, &s);
	ok = ok && exchange(sock, mode, &b, salt, &s, &r, &t0, &t1, &alive);
	ok &= mode == LEGACY ? free_legacy(&b, &s) : buffer_free(&b, &s);
	if (ok)
		print_answer(&s, &r.steps, t0, t1);
	else
		print_error();
	return alive;
}

static bool connected(int pair[2])
{
	struct timeval deadline = {.tv_sec = DEADLINE};
	return !socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) &&
	       !setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof deadline) &&
	       !setsockopt(pair[1], SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof deadline);
}

/* parse reads "handoff SIZE CHUNKS". */
static bool parse(const char *line, enum mode mode, uint64_t *size, uint32_t *chunks)
{
	char rest;
	if (sscanf(line, "handoff %" SCNu64 " %" SCNu32 " %c", size, chunks, &rest) != 2)
		return fail("want: handoff SIZE CHUNKS");
	if (!*chunks || *chunks > MAX_CHUNKS || !*size || *size % ((uint64_t)UNIT * *chunks))
		return fail("SIZE is not a multiple of %d times CHUNKS", UNIT);
	if (mode == LEGACY && *chunks != 1)
		return fail("legacy IPC shares one allocation: CHUNKS must be 1");
	return true;
}

static int produce(int sock, enum mode mode)
{
	char hello[sizeof failure];
	int version = 0;
	if (!open_device() || !cu(cuDriverGetVersion(&version), "cuDriverGetVersion") ||
	    await(sock, hello, sizeof hello) < 0 ||
	    (hello[0] && !fail("consumer: %.*s", (int)sizeof hello - 1, hello))) {
		print_error();
		return 1;
	}
	printf("{\"ready\":true,\"name\":\"c-%s\",\"info\":\"CUDA %d.%d\"}\n", mode_names[mode], version / 1000,
	       version % 1000 / 10);
	fflush(stdout);

	char line[128];
	while (fgets(line, sizeof line, stdin)) {
		uint64_t size;
		uint32_t chunks;
		failure[0] = 0;
		if (!parse(line, mode, &size, &chunks))
			print_error();
		else if (!handoff(sock, mode, size, chunks))
			return 1;
	}
	return 0;
}

/* more_files raises the limit on descriptors: a handoff of many chunks needs one
 * for each. */
static void more_files(void)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_NOFILE, &limit))
		return;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

int main(int argc, char **argv)
{
	int mode = LEGACY;
	while (argc == 3 && mode >= 0 && strcmp(argv[2], mode_names[mode]))
		mode--;
	if (argc != 3 || strcmp(argv[1], "-mode") || mode < 0) {
		fprintf(stderr, "usage: %s -mode inside|before|legacy\n", argv[0]);
		return 2;
	}
	more_files();
	int pair[2];
	if (!connected(pair)) {
		perror("handoff: socketpair");
		return 1;
	}
	pid_t parent = getpid();
	pid_t child = fork(); /* before cuInit: a driver does not survive a fork */
	if (child < 0) {
		perror("handoff: fork");
		return 1;
	}
	if (!child) {
		close(pair[0]);
		/* Standard output is the producer's alone. */
		if (dup2(STDERR_FILENO, STDOUT_FILENO) < 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent)
			_exit(1);
		consume(pair[1]);
	}
	close(pair[1]);
	int code = produce(pair[0], (enum mode)mode);
	close(pair[0]); /* which ends an idle consumer */
	if (code)
		kill(child, SIGKILL); /* it may be stuck in a call */
	while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
		;
	return code;
}
