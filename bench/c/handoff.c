/*
 * handoff: what handing GPU memory to another process costs in plain C.
 *
 *	gcc -O2 -Wall -Wextra -pthread -I/usr/local/cuda/include -o handoff handoff.c -lcuda
 *
 * It is a rival of the benchmark: it answers one JSON object a line on standard
 * output to each line "handoff SIZE" on standard input, and ends with it. Memory is
 * virtual memory, exported to a file descriptor before the clock starts.
 *
 * The consumer is forked before cuInit, so each process has a driver and a primary
 * context of its own. They talk over one SOCK_SEQPACKET pair, in this order:
 *
 *	consumer → producer	hello: a string, empty or what failed
 *	producer → consumer	nudge: the size 0, before the buffer is made
 *	consumer → producer	a string, empty
 *	producer → consumer	the size, with a descriptor
 *	consumer → producer	acknowledgement: a string, empty or what failed
 *	consumer → producer	struct report, if the acknowledgement was empty
 *
 * A nudge wakes the consumer before the buffer is made: ours connects then. The
 * clock runs from the offer to the acknowledgement. Mapping is read-write. What need
 * not be waited for comes after the acknowledgement: descriptor and handle are let go
 * with the mapping.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	DEADLINE = 60, /* seconds to wait for the other process */
	UNIT = 2 << 20 /* bytes; every size is a multiple of it */
};

#include "driver.h"

/* report is what the consumer read, sent after the time. */
struct report {
	char error[400];
	uint64_t salt[2];
};

/* buffer is memory of one process, made or imported. What is there can be told, so that a
 * failure half-way can be undone. */
struct buffer {
	uint64_t size;
	CUdeviceptr at; /* the reservation */
	CUmemGenericAllocationHandle handle;
	int fd;
	bool held, mapped; /* the handle is there, and maps */
};

/* --- memory, on both sides --- */

/* buffer_map maps the memory, read-write for device 0. */
static bool buffer_map(struct buffer *b)
{
	CUmemAccessDesc access = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	if (!cu(cuMemAddressReserve(&b->at, b->size, 0, 0, 0), "cuMemAddressReserve"))
		return false;
	b->mapped = cu(cuMemMap(b->at, b->size, 0, b->handle, 0), "cuMemMap");
	return b->mapped && cu(cuMemSetAccess(b->at, b->size, &access, 1), "cuMemSetAccess");
}

/* buffer_free undoes what there is and goes on after a failure. */
static bool buffer_free(struct buffer *b)
{
	bool ok = true;
	if (b->mapped)
		ok &= cu(cuMemUnmap(b->at, b->size), "cuMemUnmap");
	if (b->at)
		ok &= cu(cuMemAddressFree(b->at, b->size), "cuMemAddressFree");
	if (b->held)
		ok &= cu(cuMemRelease(b->handle), "cuMemRelease");
	if (b->fd >= 0)
		close(b->fd);
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

/* transmit sends one record with a descriptor, or none if fd is negative. */
static bool transmit(int sock, const void *data, size_t n, int fd)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec iov = {.iov_base = (void *)data, .iov_len = n};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
	if (fd >= 0) {
		m.msg_control = control.bytes;
		m.msg_controllen = sizeof control.bytes;
		struct cmsghdr *c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &fd, sizeof fd);
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
	return transmit(sock, text, strlen(text) + 1, -1);
}

/* receive_offer takes a size, and its descriptor unless it is 0. 1 if there was one, 0 at
 * the end, -1 with errno set. */
static int receive_offer(int sock, uint64_t *size, int *fd)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec iov = {.iov_base = size, .iov_len = sizeof *size};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1,
			   .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
	ssize_t got;
	do
		got = recvmsg(sock, &m, MSG_CMSG_CLOEXEC);
	while (got < 0 && errno == EINTR);
	if (got <= 0)
		return (int)got;
	errno = EPROTO;
	if (got != sizeof *size || m.msg_flags & (MSG_TRUNC | MSG_CTRUNC))
		return -1;
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	if (!*size)
		return c ? -1 : 1;
	if (!c || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(sizeof(int)))
		return -1;
	memcpy(fd, CMSG_DATA(c), sizeof *fd);
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

/* take imports the memory and maps it. */
static bool take(struct buffer *b)
{
	b->held = cu(cuMemImportFromShareableHandle(&b->handle, (void *)(uintptr_t)b->fd,
						    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
		     "cuMemImportFromShareableHandle");
	return b->held && buffer_map(b);
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
		struct buffer b = {.fd = -1};
		int got = receive_offer(sock, &b.size, &b.fd);
		if (got < 0 && errno == EAGAIN)
			continue; /* idle between two handoffs */
		if (got <= 0)
			_exit(got ? 1 : 0);

		struct report r = {0};
		failure[0] = 0;
		if (!b.size) {
			if (!say(sock))
				die("the answer to a nudge");
			continue;
		}
		bool ok = take(&b);
		if (!say(sock))
			die("the acknowledgement");

		if (ok)
			read_salts(&b, r.salt);
		buffer_free(&b);
		memcpy(r.error, failure, sizeof r.error);
		if (ok && !transmit(sock, &r, sizeof r, -1))
			die("the report");
	}
}

/* --- the producer --- */

static bool make(struct buffer *b)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
	};
	b->held = cu(cuMemCreate(&b->handle, b->size, &prop, 0), "cuMemCreate");
	return b->held && buffer_map(b);
}

static bool export(struct buffer *b)
{
	int fd;
	if (!cu(cuMemExportToShareableHandle(&fd, b->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
		"cuMemExportToShareableHandle"))
		return false;
	b->fd = fd;
	return true;
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

/* nudge wakes the consumer and waits until it is awake. */
static bool nudge(int sock)
{
	uint64_t none = 0;
	char answer[sizeof failure];
	return transmit(sock, &none, sizeof none, -1) && await(sock, answer, sizeof answer) > 0 &&
	       (!answer[0] || fail("consumer: %.*s", (int)sizeof answer - 1, answer));
}

/* exchange hands b over and has the salt compared. Where it fails, *alive says
 * whether the consumer waits for the next handoff: not if it was left half-way. */
static bool exchange(int sock, struct buffer *b, uint64_t salt, int64_t *ns, bool *alive)
{
	char ack[sizeof failure];
	struct report r;
	int64_t t0 = now();
	*alive = false;
	if (!transmit(sock, &b->size, sizeof b->size, b->fd))
		return false;
	if (await(sock, ack, sizeof ack) < 0)
		return false;
	*ns = now() - t0;
	if (ack[0]) {
		*alive = true;
		return fail("consumer: %.*s", (int)sizeof ack - 1, ack);
	}
	if (await(sock, &r, sizeof r) != sizeof r)
		return fail("a report of the wrong length");
	*alive = true;
	if (r.error[0])
		return fail("consumer: %s", r.error);
	if (r.salt[0] != salt || r.salt[1] != salt)
		return fail("salt: wrote %016" PRIx64 ", the consumer read %016" PRIx64 " and %016" PRIx64, salt,
			    r.salt[0], r.salt[1]);
	return true;
}

/* handoff does one and prints the answer. False where no other can follow. */
static bool handoff(int sock, uint64_t size)
{
	struct buffer b = {.size = size, .fd = -1};
	uint64_t salt = 0;
	int64_t ns = 0;
	bool alive = nudge(sock);

	bool ok = alive && make(&b) && salted(&b, &salt) && export(&b) && exchange(sock, &b, salt, &ns, &alive);
	ok &= buffer_free(&b);
	if (ok) {
		printf("{\"ns\":%" PRId64 "}\n", ns);
		fflush(stdout);
	} else {
		print_error();
	}
	return alive;
}

static bool connected(int pair[2])
{
	struct timeval deadline = {.tv_sec = DEADLINE};
	return !socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) &&
	       !setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof deadline) &&
	       !setsockopt(pair[1], SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof deadline);
}

/* parse reads "handoff SIZE". */
static bool parse(const char *line, uint64_t *size)
{
	char rest;
	if (sscanf(line, "handoff %" SCNu64 " %c", size, &rest) != 1)
		return fail("want: handoff SIZE");
	if (!*size || *size % UNIT)
		return fail("SIZE is not a multiple of %d", UNIT);
	return true;
}

static int produce(int sock)
{
	char hello[sizeof failure];
	int version = 0;
	if (!open_device() || !cu(cuDriverGetVersion(&version), "cuDriverGetVersion") ||
	    await(sock, hello, sizeof hello) < 0 ||
	    (hello[0] && !fail("consumer: %.*s", (int)sizeof hello - 1, hello))) {
		print_error();
		return 1;
	}
	printf("{\"ready\":true,\"name\":\"c\",\"info\":\"CUDA %d.%d\"}\n", version / 1000, version % 1000 / 10);
	fflush(stdout);

	char line[128];
	while (fgets(line, sizeof line, stdin)) {
		uint64_t size;
		failure[0] = 0;
		if (!parse(line, &size))
			print_error();
		else if (!handoff(sock, size))
			return 1;
	}
	return 0;
}

int main(void)
{
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
	int code = produce(pair[0]);
	close(pair[0]); /* which ends an idle consumer */
	if (code)
		kill(child, SIGKILL); /* it may be stuck in a call */
	while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
		;
	return code;
}
