/*
 * consumer attaches to the memory that a producer of gpufd offers, and verifies it.
 *
 *	cc -O2 -Wall -Wextra -o consumer consumer.c -ldl
 *	consumer [-socket PATH] [-driver auto|cuda|soft] [-access ro|rw] [-timeout 30s]
 *	         [-expect-salt NUMBER] [-allow-uid U]
 *
 * It is a client of docs/wire.md in one file, for memory that is offered as descriptors or by
 * a handle of legacy IPC. It opens libcuda when it runs, so building it takes no CUDA toolkit:
 * what it needs of cuda.h is declared below. With the software driver the descriptors are files,
 * which it maps. That driver's legacy handles are for its own processes.
 *
 * Every length is checked before it is used, every wait has a deadline, and every
 * descriptor that comes is closed. Exit codes: 0 done and verified, 1 failed, 2 wrong
 * usage, 3 this machine cannot, 4 timed out or the peer was lost.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 /* from Linux 6.16 on */
#endif

enum { ATTACH = 1, OFFER, REFUSE, PROGRESS, MAPPED, VERDICT, REVOKE, PUBLISH, CONFIRM, FAREWELL };
enum { CUDA = 1, SOFT = 2 };
enum { READ_ONLY = 1, READ_WRITE = 3 };
enum { DESCRIPTORS = 1, LEGACY = 2 };
enum {
	HEADER = 16,
	MAX_RECORD = 8192, /* bytes taken; the longest record that there is has about half */
	MAX_FDS = 64,      /* in a record */
	MAX_CHUNKS = 4096,
	MAX_TEXT = 4096,
	RATE = 1000,        /* records a second, which may come at once */
	PIECE = 1 << 20,    /* bytes that are compared at a time */
	TRAILER_SIZE = 4096 /* behind the data in a file of the software driver */
};

enum { MAY_OUTLIVE = 1 }; /* a flag of a process: its work may go on after its death, under MPS, or it cannot tell */
enum { CAPABILITIES = 1, PROCESS = 2, REASON = 6, FIELD_REQUIRED = 0x8000 }; /* fields: from the last on they have to be known */
enum { IGNORABLE = 1 };                             /* a flag */
enum { TAKES_LEGACY = 1 };                          /* a capability */

static const char offer_name[] = "producer";

/* options are the flags. */
static struct {
	const char *socket;
	int driver; /* 0 chooses */
	int access;
	double timeout; /* seconds */
	bool salted;
	uint32_t salt;
	long uid; /* admitted besides our own, or -1 */
} options = {.access = READ_ONLY, .timeout = 30, .uid = -1};

/* offer is what the producer says, and the descriptors that came so far. */
struct offer {
	int driver, access, handle_type, pending;
	uint32_t chunks, first, nfds;
	unsigned char device[16];
	uint64_t size, chunk_size, granularity, generation;
	size_t name_length, data_length;
	unsigned char rest[255 + 4096]; /* the name, and the application's data behind it */
	uint64_t offset;                /* of legacy memory in its allocation, of chunk_size */
	unsigned char handle[64];       /* of that */
};

struct record {
	size_t length;
	unsigned char bytes[MAX_RECORD];
	int nfds;
	int fds[MAX_FDS];
};

/* failure is the first thing that went wrong, and status the exit code for it. */
static char failure[1024];
static int status;

/* over is set when the conversation has ended. refusal is the code to end it with if the peer
 * is to blame. */
static bool over;
static int refusal;

/* foul is set when the queue begins with descriptors that are not wanted. They are left there. */
static bool foul;

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

/* blame is fail, for what the peer has done wrong. */
#define blame(code, ...) (refusal = (code), fail(1, __VA_ARGS__))

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* --- numbers, little-endian --- */

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

/* utf8 reports whether n bytes are UTF-8, and have no control characters if they must not. */
static bool utf8(const unsigned char *p, size_t n, bool name)
{
	static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
	for (size_t i = 0; i < n;) {
		int more = p[i] < 0x80 ? 1 : p[i] >> 5 == 6 ? 2 : p[i] >> 4 == 14 ? 3 : p[i] >> 3 == 30 ? 4 : 0;
		if (!more || (size_t)more > n - i)
			return false;
		uint32_t c = more == 1 ? p[i] : p[i] & (0x7f >> more);
		for (int k = 1; k < more; k++) {
			if (p[i + k] >> 6 != 2)
				return false;
			c = c << 6 | (p[i + k] & 0x3f);
		}
		if (c < least[more] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
			return false;
		if (name && (c < 0x20 || (c >= 0x7f && c < 0xa0)))
			return false;
		i += more;
	}
	return true;
}

/* --- records --- */

static void close_fds(int *fds, int *n)
{
	while (*n)
		close(fds[--*n]);
}

/* await waits for the socket until the deadline. */
static bool await(int sock, short event, double deadline)
{
	for (;;) {
		double left = deadline - now();
		struct pollfd p = {.fd = sock, .events = event};
		int n = left <= 0 ? 0 : poll(&p, 1, (int)(left * 1000) + 1);
		if (n > 0)
			return true;
		if (n == 0)
			return fail(4, "the producer took longer than %g s", options.timeout);
		if (errno != EINTR)
			return fail(1, "poll: %s", strerror(errno));
	}
}

/* transmit sends a record with that body. If it returns false and nothing has failed, the peer
 * has hung up. */
static bool transmit(int sock, int type, const void *body, size_t n)
{
	unsigned char record[HEADER + 512], *p = record;
	if (n > sizeof record - HEADER)
		return fail(1, "a record of %zu bytes is too long to send", n);
	memcpy(p, "GPFD", 4);
	p = put(p + 4, 1, 2);
	p = put(p, type, 2);
	p = put(p, 0, 4);
	p = put(p, n, 4);
	memcpy(p, body, n);
	double deadline = now() + options.timeout;
	for (;;) {
		if (send(sock, record, HEADER + n, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
			return true;
		if (errno == EAGAIN) {
			if (!await(sock, POLLOUT, deadline))
				return false;
		} else if (errno == EPIPE || errno == ECONNRESET) {
			return false;
		} else if (errno != EINTR) {
			return fail(1, "sendmsg: %s", strerror(errno));
		}
	}
}

/* take_control moves the descriptors of a message to the record. */
static void take_control(struct msghdr *m, struct record *r)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < n; i++) {
			int fd;
			memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
			if (r->nfds < MAX_FDS)
				r->fds[r->nfds++] = fd;
			else
				close(fd);
		}
	}
}

/* slow_enough bounds the records of the peer. */
static bool slow_enough(void)
{
	static double left = RATE, at;
	double t = now();
	left += at ? (t - at) * RATE : 0;
	if (left > RATE)
		left = RATE;
	at = t;
	return --left >= 0 || blame(9, "more than %d records a second", RATE);
}

static int type_of(const struct record *r) { return (int)get(r->bytes + 6, 2); }

/* is_known reports whether a type means something here. FAREWELL does not: after a verdict the
 * producer closes in any case. */
static bool is_known(int type) { return type >= ATTACH && type <= CONFIRM; }

/* not_known blames the peer for something that this program would have to understand. */
#define not_known(...) blame(10, "the peer uses what this program does not know: " __VA_ARGS__)

/* table_size returns the length of the part of a record that the table of its type describes. It
 * may be more than there is. */
static size_t table_size(const struct record *r)
{
	const unsigned char *b = r->bytes + HEADER;
	size_t left = r->length - HEADER;
	switch (type_of(r)) {
	case OFFER:
		return left < 68 ? 68 : 68 + get(b + 64, 2) + get(b + 66, 2) + (b[2] == LEGACY ? 72 : 0);
	case REFUSE:
		return left < 4 ? 4 : 4 + get(b + 2, 2);
	case REVOKE:
		return left < 2 ? 2 : 2 + get(b, 2);
	case PROGRESS:
		return 16;
	case MAPPED:
	case PUBLISH:
	case CONFIRM:
		return 8;
	case FAREWELL:
		return 0;
	}
	return left; /* no producer says ATTACH or VERDICT */
}

/* has_fields reports whether the rest of the record is fields, none of which would have to be
 * known. */
static bool has_fields(const struct record *r, size_t at)
{
	int type = type_of(r);
	for (long last = -1; at < r->length;) {
		const unsigned char *b = r->bytes + at;
		size_t left = r->length - at;
		long number = left < 4 ? 0 : (long)get(b, 2);
		if (left < 4 || get(b + 2, 2) > left - 4)
			return blame(6, "a record of type %d with a field that is cut off", type);
		if (number <= last)
			return blame(6, "a record of type %d with field %ld behind field %ld", type, number, last);
		if (number == CAPABILITIES && (type == OFFER || type == PROGRESS) && get(b + 2, 2) < 8)
			return blame(6, "capabilities of %" PRIu64 " bytes", get(b + 2, 2));
		if (number == REASON && type == REVOKE && get(b + 2, 2) < 8)
			return blame(6, "a reason of %" PRIu64 " bytes", get(b + 2, 2));
		if (number == PROCESS && type == OFFER && get(b + 2, 2) < 8)
			return blame(6, "flags of a process of %" PRIu64 " bytes", get(b + 2, 2));
		if (number >= FIELD_REQUIRED)
			return not_known("field %ld of a record of type %d", number, type);
		last = number;
		at += 4 + get(b + 2, 2);
	}
	return true;
}

/* readable reports whether the rest of a record is as its header says, and has nothing that would
 * have to be known. */
static bool readable(const struct record *r)
{
	uint32_t flags = (uint32_t)get(r->bytes + 8, 4), upper = flags & 0xffff0000;
	int type = type_of(r), handle = r->bytes[HEADER + 2];
	size_t left = r->length - HEADER, table = table_size(r);
	if (upper)
		return not_known("flags %#" PRIx32, upper);
	if (!is_known(type) && type != FAREWELL)
		return flags & IGNORABLE || not_known("records of type %d", type);
	if (type == OFFER && left > 2 && handle != DESCRIPTORS && handle != LEGACY)
		return not_known("handles of type %d", handle);
	if (table > left)
		return blame(6, "a record of type %d whose lengths make no sense", type);
	return has_fields(r, HEADER + table);
}

/* look is recvmsg of a record that stays in the queue, with MSG_CTRUNC in *flags if it has
 * descriptors. 0 is the end, or a record of length 0, which is taken. */
static ssize_t look(int sock, struct record *r, int *flags)
{
	struct iovec iov = {.iov_base = r->bytes, .iov_len = sizeof r->bytes};
	for (int i = 0; i < 2; i++) { /* a record that was queued before the peer closed may show up only now */
		struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
		ssize_t n = recvmsg(sock, &m, MSG_DONTWAIT | MSG_PEEK);
		*flags = m.msg_flags;
		if (n || m.msg_flags & MSG_CTRUNC)
			return n;
	}
	return recv(sock, r->bytes, 1, MSG_DONTWAIT);
}

/* past_reset is recvmsg of a record that is known to be in the queue. A reset may come before
 * it, once. */
static ssize_t past_reset(int sock, struct msghdr *m, int flags)
{
	struct msghdr again = *m;
	ssize_t n = recvmsg(sock, m, flags | MSG_DONTWAIT);
	if (n >= 0 || errno != ECONNRESET)
		return n;
	*m = again;
	return recvmsg(sock, m, flags | MSG_DONTWAIT);
}

/* drop takes the record that was looked at from the queue, without its descriptors. */
static void drop(int sock)
{
	struct msghdr m = {0};
	past_reset(sock, &m, 0);
}

/* take_fds takes the descriptors of the record that was looked at, if they are as many as
 * wanted, and then the record from the queue. The last close of a socket can wait for as long
 * as the peer likes (SO_LINGER). So sockets are not taken. Closing what MSG_PEEK made is safe,
 * because it is not the last while the record is in the queue. */
static bool take_fds(int sock, struct record *r, uint64_t want)
{
	union {
		char bytes[CMSG_SPACE(MAX_FDS * sizeof(int))];
		struct cmsghdr align;
	} control;
	char byte;
	struct iovec iov = {.iov_base = &byte, .iov_len = 1};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = CMSG_LEN(want * sizeof(int))};
	bool ok = past_reset(sock, &m, MSG_PEEK | MSG_CMSG_CLOEXEC) >= 0 || fail(1, "recvmsg: %s", strerror(errno));
	if (ok)
		take_control(&m, r);
	if (ok && (m.msg_flags & MSG_CTRUNC || (uint64_t)r->nfds != want))
		ok = blame(6, "a record with other than the %" PRIu64 " descriptors that it says, or more than ulimit -n allows", want);
	for (int i = 0; ok && i < r->nfds; i++) {
		struct stat st;
		if (fstat(r->fds[i], &st) || S_ISSOCK(st.st_mode))
			ok = blame(6, "a descriptor that is a socket");
	}
	foul = !ok;
	if (ok)
		drop(sock); /* without room for them: we have them */
	else
		close_fds(r->fds, &r->nfds);
	return ok;
}

/* receive takes the next record with its descriptors, which the caller closes. A record of an
 * unknown type is to be ignored. After a failure no descriptors are left. *ended is set if the
 * peer has hung up. */
static bool receive(int sock, struct record *r, bool *ended, double deadline)
{
	bool once = false;
	*ended = false;
	r->nfds = 0;
	if (foul) {
		if (await(sock, POLLRDHUP, deadline))
			*ended = over = true;
		return false;
	}
	for (;;) {
		int flags = 0;
		ssize_t n = look(sock, r, &flags);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN) {
			if (once)
				return blame(6, "a record of length 0");
			if (!await(sock, POLLIN, deadline))
				return false;
			continue;
		}
		if (n < 0 && errno != ECONNRESET)
			return fail(1, "recvmsg: %s", strerror(errno));
		foul = n >= 0 && flags & MSG_CTRUNC; /* until the descriptors are known to be wanted */
		if (n <= 0 && !foul) {
			/* A record that was queued before the peer closed may show up only now. */
			if (once) {
				*ended = over = true;
				return false;
			}
			once = true;
			continue;
		}
		unsigned char *b = r->bytes;
		r->length = (size_t)n;
		if (!foul)
			drop(sock);
		if (flags & MSG_TRUNC)
			return blame(6, "a record that is too long");
		if (r->length < HEADER || memcmp(b, "GPFD", 4))
			return blame(6, "a record that does not begin with GPFD");
		if (get(b + 4, 2) != 1)
			return blame(5, "the peer speaks version %" PRIu64 ", this program 1", get(b + 4, 2));
		if (get(b + 12, 4) != r->length - HEADER)
			return blame(6, "%" PRIu64 " bytes follow, it says, and %zu do", get(b + 12, 4), r->length - HEADER);
		if (!slow_enough() || !readable(r))
			return false;
		if (!foul)
			return true;
		uint64_t want = get(b + 6, 2) == OFFER && r->length >= HEADER + 68 ? get(b + HEADER + 60, 4) : 0;
		if (!want || want > MAX_FDS)
			return blame(6, "descriptors came with a record of type %" PRIu64 " that is without descriptors, or has too many", get(b + 6, 2));
		return take_fds(sock, r, want);
	}
}

/* text_of returns a text of the record, which follows its length, made fit for a terminal. */
static const char *text_of(const struct record *r, size_t at)
{
	static char text[MAX_TEXT + 1];
	const unsigned char *b = r->bytes + HEADER;
	size_t n = get(b + at, 2);
	if (n > MAX_TEXT || !utf8(b + at + 2, n, false))
		return "(a malformed text)";
	memcpy(text, b + at + 2, n);
	text[n] = 0;
	for (char *p = text; p < text + n; p++) {
		unsigned char c = (unsigned char)*p;
		if (c < 0x20 || c == 0x7f)
			*p = '?';
		else if (c == 0xc2 && (unsigned char)p[1] < 0xa0) /* U+0080 to U+009F */
			p[0] = p[1] = '?';
	}
	return text;
}

/* reason_of returns why a REVOKE ends the lease. A producer that does not say so is older, and a later one
 * may have other reasons. */
static const char *reason_of(const struct record *r)
{
	static const char *const reasons[] = {"revoked", "withdrawn", "superseded", "revoked", "restarting"};
	for (size_t at = HEADER + table_size(r); at < r->length; at += 4 + get(r->bytes + at + 2, 2)) {
		uint64_t reason = get(r->bytes + at, 2) == REASON ? get(r->bytes + at + 4, 8) : 0;
		if (reason && reason < sizeof reasons / sizeof *reasons)
			return reasons[reason];
	}
	return reasons[0];
}

/* goes_on reports whether the conversation goes on after a record. A refusal for being too slow
 * (code 7) is a timeout. */
static bool goes_on(const struct record *r)
{
	int type = type_of(r), code = (int)get(r->bytes + HEADER, 2);
	if (type != REFUSE && type != REVOKE)
		return true;
	over = true;
	if (type == REVOKE)
		return fail(4, "%s by the producer: %s", reason_of(r), text_of(r, 0));
	return fail(code == 7 ? 4 : 1, "refused: %s (code %d)", text_of(r, 2), code);
}

/* hear_any is receive, and fails if the record ends the conversation. */
static bool hear_any(int sock, struct record *r, double deadline)
{
	bool ended;
	if (!receive(sock, r, &ended, deadline))
		return ended ? fail(4, "the producer hung up") : false;
	return goes_on(r);
}

/* hear waits for a record that is not to be ignored. Ignored ones renew no deadline. */
static bool hear(int sock, struct record *r)
{
	double deadline = now() + options.timeout;
	while (hear_any(sock, r, deadline))
		if (is_known(type_of(r)))
			return true;
	return false;
}

/* say sends a record. A producer that has hung up may have said why. */
static bool say(int sock, int type, const void *body, size_t n)
{
	struct record r;
	if (transmit(sock, type, body, n))
		return true;
	while (!status && hear(sock, &r))
		close_fds(r.fds, &r.nfds);
	return false;
}

/* say_progress says how far the work is, and hears what has come meanwhile: the producer may
 * want the memory back. */
static bool say_progress(int sock, uint64_t done, uint64_t total)
{
	static struct record r;
	unsigned char body[16];
	put(put(body, done, 8), total, 8);
	if (!say(sock, PROGRESS, body, sizeof body))
		return false;
	for (struct pollfd p = {.fd = sock, .events = POLLIN}; poll(&p, 1, 0) > 0;) {
		if (!hear_any(sock, &r, now() + options.timeout))
			return false;
		close_fds(r.fds, &r.nfds);
		if (is_known(type_of(&r)) && type_of(&r) != PROGRESS)
			return blame(6, "a record of type %d to a consumer that is attached", type_of(&r));
	}
	return true;
}

/* The longest text that is sent; its length comes before it. */
enum { SAYS = 500 };

/* put_text writes the length of a text and the text, cut between two characters if it is too
 * long. It returns the end. */
static unsigned char *put_text(unsigned char *p, const char *text)
{
	size_t n = strlen(text);
	while (n > SAYS || !utf8((const unsigned char *)text, n, false))
		n--; /* nothing at all is UTF-8 */
	memcpy(put(p, n, 2), text, n);
	return p + 2 + n;
}

/* say_verdict gives the verdict, and waits until the producer has read it and closed. */
static bool say_verdict(int sock, bool good, const char *text)
{
	unsigned char body[4 + SAYS];
	unsigned char *end = put_text(put(put(body, good, 1), 0, 1), text);
	if (!say(sock, VERDICT, body, (size_t)(end - body)))
		return false;
	over = true;
	double deadline = now() + options.timeout; /* which progress does not renew */
	for (struct record r;;) {
		bool ended;
		if (!receive(sock, &r, &ended, deadline))
			return ended;
		close_fds(r.fds, &r.nfds);
		if (!goes_on(&r))
			return false;
		if (is_known(type_of(&r)) && type_of(&r) != PROGRESS)
			return blame(6, "a record of type %d behind the verdict", type_of(&r));
	}
}

/* --- the offer --- */

/* parse_legacy reads what follows the data in an offer by a legacy handle. */
static bool parse_legacy(const struct record *r, struct offer *o)
{
	const unsigned char *b = r->bytes + HEADER + 68 + o->name_length + o->data_length;
	o->offset = get(b, 8);
	memcpy(o->handle, b + 8, sizeof o->handle);
	if (o->chunks != 1 || o->first || o->nfds || o->granularity || o->access != READ_WRITE || r->nfds)
		return fail(1, "legacy memory is one chunk that can be written, without descriptors and granularity");
	if (!o->size || o->size > o->chunk_size || o->offset > o->chunk_size - o->size)
		return fail(1, "%" PRIu64 " bytes at %" PRIu64 " of an allocation of %" PRIu64, o->size, o->offset, o->chunk_size);
	return true;
}

static bool parse_offer(const struct record *r, struct offer *o)
{
	const unsigned char *b = r->bytes + HEADER;
	o->driver = b[0], o->access = b[1], o->handle_type = b[2], o->pending = b[3];
	o->chunks = (uint32_t)get(b + 4, 4);
	memcpy(o->device, b + 8, 16);
	o->size = get(b + 24, 8), o->chunk_size = get(b + 32, 8);
	o->granularity = get(b + 40, 8), o->generation = get(b + 48, 8);
	o->first = (uint32_t)get(b + 56, 4), o->nfds = (uint32_t)get(b + 60, 4);
	o->name_length = get(b + 64, 2), o->data_length = get(b + 66, 2);
	if ((o->access != READ_ONLY && o->access != READ_WRITE) || o->pending > 1)
		return fail(1, "an OFFER with access %d, pending %d", o->access, o->pending);
	if (!o->name_length || o->name_length > 255 || o->data_length > 4096)
		return fail(1, "an OFFER whose lengths make no sense");
	if (!utf8(b + 68, o->name_length, true))
		return fail(1, "an OFFER whose name is no text");
	memcpy(o->rest, b + 68, o->name_length + o->data_length);
	if (o->handle_type == LEGACY)
		return parse_legacy(r, o);
	if (o->nfds < 1 || o->nfds > MAX_FDS || (int)o->nfds != r->nfds)
		return fail(1, "an OFFER of %u descriptors with %d", o->nfds, r->nfds);
	if (o->chunks < 1 || o->chunks > MAX_CHUNKS || o->first >= o->chunks || o->nfds > o->chunks - o->first)
		return fail(1, "an OFFER of %u chunks, from %u on", o->chunks, o->first);
	if (!o->granularity || !o->chunk_size || o->chunk_size % o->granularity || o->chunk_size > UINT64_MAX / o->chunks)
		return fail(1, "an OFFER with chunks of %" PRIu64 ", granularity %" PRIu64, o->chunk_size, o->granularity);
	if (o->size > o->chunks * o->chunk_size || o->size <= (o->chunks - 1) * o->chunk_size)
		return fail(1, "an OFFER of %" PRIu64 " bytes in %u chunks of %" PRIu64, o->size, o->chunks, o->chunk_size);
	return true;
}

/* alike reports whether two records are of one offer. */
static bool alike(const struct offer *a, const struct offer *b)
{
	return a->driver == b->driver && a->handle_type == b->handle_type && a->access == b->access && a->pending == b->pending && a->chunks == b->chunks &&
	       !memcmp(a->device, b->device, 16) && a->size == b->size && a->chunk_size == b->chunk_size &&
	       a->granularity == b->granularity && a->generation == b->generation && a->name_length == b->name_length &&
	       a->data_length == b->data_length && !memcmp(a->rest, b->rest, a->name_length + a->data_length);
}

/* takes_legacy reports whether legacy handles can be opened here. Those of the software driver
 * are for its own processes. */
static bool takes_legacy(int driver) { return driver == CUDA; }

/* fits reports whether this is the offer that was asked for. */
static bool fits(const struct offer *o, int driver)
{
	if (o->driver != driver)
		return fail(1, "the producer uses a driver of kind %d and this program %d (1 cuda, 2 soft)", o->driver, driver);
	if (o->access < options.access)
		return fail(1, "less access is offered than was asked for");
	if (o->handle_type == LEGACY && !takes_legacy(driver))
		return fail(1, "an offer by a legacy handle, to a consumer that takes none");
	if (o->name_length != strlen(offer_name) || memcmp(o->rest, offer_name, o->name_length))
		return fail(1, "an offer of another name");
	return true;
}

/* take asks for the offer. fds has room for MAX_CHUNKS, and *nfds is how many came, also after a
 * failure. The caller closes them. */
static bool take(int sock, int driver, struct offer *o, int *fds, int *nfds)
{
	unsigned char body[64], *p = put(put(put(body, driver, 1), options.access, 1), 0, 2);
	p = put(p, strlen(offer_name), 2);
	memcpy(p, offer_name, strlen(offer_name));
	p += strlen(offer_name);
	if (takes_legacy(driver))
		p = put(put(put(p, CAPABILITIES, 2), 8, 2), TAKES_LEGACY, 8);
	p = put(put(put(p, PROCESS, 2), 8, 2), driver == SOFT ? 0 : MAY_OUTLIVE, 8); /* nobody asks the driver here */
	if (!say(sock, ATTACH, body, (size_t)(p - body)))
		return false;
	static struct record r;
	static struct offer next;
	do {
		if (!hear(sock, &r))
			return false;
		if (type_of(&r) == PROGRESS)
			continue;
		int had = *nfds;
		bool ok = type_of(&r) == OFFER ? parse_offer(&r, &next) : fail(1, "a record of type %d where an offer is expected", type_of(&r));
		if (ok && next.first != (uint32_t)had)
			ok = fail(1, "an OFFER from chunk %u on, and %d came", next.first, had);
		if (ok && had && !alike(o, &next))
			ok = fail(1, "records of an offer contradict each other");
		if (ok && !had)
			ok = fits(&next, driver);
		if (!ok) {
			close_fds(r.fds, &r.nfds);
			return false;
		}
		*o = next;
		memcpy(fds + had, r.fds, (size_t)r.nfds * sizeof *fds);
		*nfds += r.nfds;
	} while (!o->handle_type || (o->handle_type == DESCRIPTORS && (uint32_t)*nfds < o->chunks));
	int no = 0; /* descriptors from here on: the kernel refuses them, if it can */
	setsockopt(sock, SOL_SOCKET, SO_PASSRIGHTS, &no, sizeof no);
	return true;
}

/* hear_that waits for a record of that type with the offer's generation. */
static bool hear_that(int sock, int type, const char *name, const struct offer *o)
{
	static struct record r;
	for (;;) {
		if (!hear(sock, &r))
			return false;
		close_fds(r.fds, &r.nfds);
		if (type_of(&r) == type && get(r.bytes + HEADER, 8) == o->generation)
			return true;
		if (type_of(&r) != PROGRESS)
			return fail(1, "a record of type %d where %s is expected", type_of(&r), name);
	}
}

/* say_mapped waits until the data is there, and says that the memory is mapped. Then the producer
 * has to confirm legacy memory, because the handle alone does not say that it is what was offered.
 * *mapped is set when bad records may be answered by REFUSE alone. */
static bool say_mapped(int sock, const struct offer *o, bool *mapped)
{
	unsigned char body[8];
	put(body, o->generation, 8);
	if (o->pending && !hear_that(sock, PUBLISH, "PUBLISH", o))
		return false;
	if (!say(sock, MAPPED, body, sizeof body))
		return false;
	if (o->handle_type == LEGACY && !hear_that(sock, CONFIRM, "CONFIRM", o))
		return false;
	*mapped = true;
	return true;
}

/* --- memory of the software driver --- */

/* memory is where the chunks are mapped: an address of the host, or of the device. */
struct memory {
	int driver;
	uint64_t at, length, chunk;
	uint32_t maps, handles;
	uint64_t handle[MAX_CHUNKS];
	uint64_t opened; /* where legacy memory's allocation begins */
	int device;
};

/* is_memory reports whether a descriptor is memory of the software driver, as offered. */
static bool is_memory(int fd, const struct offer *o)
{
	struct stat st;
	unsigned char t[64];
	if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size < TRAILER_SIZE ||
	    pread(fd, t, sizeof t, st.st_size - TRAILER_SIZE) != sizeof t || memcmp(t, "gpufd soft mem 1", 16) ||
	    get(t + 16, 4) != 1 || get(t + 24, 8) != (uint64_t)st.st_size - TRAILER_SIZE)
		return fail(1, "the descriptor is no memory of the software driver");
	if (get(t + 24, 8) != o->chunk_size)
		return fail(1, "the chunk size is not the size of the memory that came: %" PRIu64 " and %" PRIu64, o->chunk_size, get(t + 24, 8));
	if (memcmp(t + 32, o->device, 16))
		return fail(1, "the memory is of another device than the offer says");
	return true;
}

/* map_files maps the chunks side by side into a reservation. */
static bool map_files(struct memory *m, const struct offer *o, const int *fds)
{
	if (m->length > SIZE_MAX / 2)
		return fail(1, "%" PRIu64 " bytes are too many to map", m->length);
	void *at = mmap(NULL, m->length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		return fail(1, "reserving %" PRIu64 " bytes: %s", m->length, strerror(errno));
	m->at = (uintptr_t)at;
	int rights = PROT_READ | (options.access == READ_WRITE ? PROT_WRITE : 0);
	for (uint32_t i = 0; i < o->chunks; i++) {
		if (!is_memory(fds[i], o))
			return false;
		if (mmap((char *)at + i * m->chunk, m->chunk, rights, MAP_SHARED | MAP_FIXED, fds[i], 0) == MAP_FAILED)
			return fail(1, "mapping chunk %u of %u: %s", i + 1, o->chunks, strerror(errno));
	}
	return true;
}

/* --- memory of a GPU --- */

/* What is used of cuda.h, CUDA 11.4 and newer. */
typedef int CUresult, CUdevice;
typedef void *CUcontext;
typedef struct { int type, id; } CUmemLocation;
typedef struct { CUmemLocation location; int flags; } CUmemAccessDesc;
typedef struct {
	int type, requestedHandleTypes;
	CUmemLocation location;
	void *win32HandleMetaData;
	unsigned char allocFlags[8];
} CUmemAllocationProp;
typedef struct { unsigned char reserved[64]; } CUipcMemHandle;
_Static_assert(sizeof(CUmemAccessDesc) == 12 && sizeof(CUmemAllocationProp) == 32, "the layout of cuda.h");

#define FUNCTIONS(F)                                                                      \
	F(cuInit, (unsigned flags))                                                       \
	F(cuGetErrorName, (CUresult error, const char **name))                            \
	F(cuGetErrorString, (CUresult error, const char **text))                          \
	F(cuDeviceGetCount, (int *count))                                                 \
	F(cuDeviceGet, (CUdevice *device, int ordinal))                                   \
	F(cuDeviceGetUuid_v2, (unsigned char *uuid, CUdevice device))                     \
	F(cuDevicePrimaryCtxRetain, (CUcontext *context, CUdevice device))                \
	F(cuDevicePrimaryCtxRelease_v2, (CUdevice device))                                \
	F(cuCtxSetCurrent, (CUcontext context))                                           \
	F(cuMemGetAllocationGranularity, (size_t *size, const CUmemAllocationProp *prop, int option)) \
	F(cuMemImportFromShareableHandle, (uint64_t *handle, void *fd, int type))         \
	F(cuMemAddressReserve, (uint64_t *at, size_t size, size_t align, uint64_t hint, unsigned long long flags)) \
	F(cuMemMap, (uint64_t at, size_t size, size_t offset, uint64_t handle, unsigned long long flags)) \
	F(cuMemSetAccess, (uint64_t at, size_t size, const CUmemAccessDesc *desc, size_t count)) \
	F(cuMemcpyDtoH_v2, (void *to, uint64_t from, size_t size))                        \
	F(cuMemUnmap, (uint64_t at, size_t size))                                         \
	F(cuMemAddressFree, (uint64_t at, size_t size))                                   \
	F(cuMemRelease, (uint64_t handle))                                                \
	F(cuIpcOpenMemHandle_v2, (uint64_t *at, CUipcMemHandle handle, unsigned flags))   \
	F(cuIpcCloseMemHandle, (uint64_t at))                                             \
	F(cuMemGetAddressRange_v2, (uint64_t *base, size_t *size, uint64_t at))

#define DECLARE(name, args) static CUresult(*name) args;
FUNCTIONS(DECLARE)

/* call reports whether a driver call succeeded. */
#define call(function, ...) called(function(__VA_ARGS__), #function)

/* asks_machine reports whether "not supported" from a call is about this machine. From other
 * calls it says that what came is not what was offered. */
static bool asks_machine(const char *function)
{
	static const char *const those[] = {"cuInit", "cuDevice", "cuCtx", "cuMemGetAllocation", "cuMemImport", "cuIpc"};
	for (size_t i = 0; i < sizeof those / sizeof *those; i++)
		if (!strncmp(function, those[i], strlen(those[i])))
			return true;
	return false;
}

static bool called(CUresult result, const char *function)
{
	const char *name = NULL, *text = NULL;
	if (!result)
		return true;
	cuGetErrorName(result, &name);
	cuGetErrorString(result, &text);
	bool cannot = (result == 100 || result == 801 || result == 803 || result == 804) && asks_machine(function);
	return fail(cannot ? 3 : 1, "%s: %s (%d): %s", function, name ? name : "unknown", result, text ? text : "no text");
}

/* open_driver loads libcuda. */
static bool open_driver(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);
	if (!lib)
		return fail(3, "libcuda could not be opened: %s", dlerror());
#define LOAD(name, args)                                       \
	*(void **)&name = dlsym(lib, #name);                   \
	if (!name)                                             \
		return fail(3, "libcuda does not have " #name ", which came with CUDA 11.4 at the latest");
	FUNCTIONS(LOAD)
	return true;
}

/* choose is the kind of driver to use, or 0. auto takes the software driver only where
 * there is no libcuda or it sees no GPU. */
static int choose(void)
{
	if (options.driver == SOFT)
		return SOFT;
	if (!options.driver) {
		void *lib = dlopen("libcuda.so.1", RTLD_NOW);
		if (!lib)
			return SOFT;
		CUresult (*init)(unsigned);
		*(void **)&init = dlsym(lib, "cuInit");
		if (init && init(0) == 100)
			return SOFT;
	}
	return open_driver() && call(cuInit, 0) ? CUDA : 0;
}

/* enter makes a device current. */
static bool enter(struct memory *m, CUdevice device)
{
	CUcontext context;
	if (!call(cuDevicePrimaryCtxRetain, &context, device))
		return false;
	m->device = device;
	return call(cuCtxSetCurrent, context);
}

/* find_device makes the device of the offer current; of legacy memory, whose device may be
 * hidden here, any. */
static bool find_device(struct memory *m, const struct offer *o)
{
	int count;
	CUdevice device;
	if (!call(cuDeviceGetCount, &count))
		return false;
	for (int i = 0; i < count; i++) {
		unsigned char uuid[16];
		if (!call(cuDeviceGet, &device, i) || !call(cuDeviceGetUuid_v2, uuid, device))
			return false;
		if (!memcmp(uuid, o->device, 16))
			return enter(m, device);
	}
	if (o->handle_type == LEGACY)
		return call(cuDeviceGet, &device, 0) && enter(m, device);
	return fail(1, "the memory is on a device that is not visible to this process (CUDA_VISIBLE_DEVICES?)");
}

/* open_legacy opens the allocation that the memory is in. */
static bool open_legacy(struct memory *m, const struct offer *o)
{
	CUipcMemHandle handle;
	uint64_t base;
	size_t whole;
	memcpy(handle.reserved, o->handle, sizeof handle.reserved);
	if (!find_device(m, o) || !call(cuIpcOpenMemHandle_v2, &m->opened, handle, 1 /* lazy peer access */) ||
	    !call(cuMemGetAddressRange_v2, &base, &whole, m->opened))
		return false;
	m->at = m->opened + o->offset;
	return whole >= o->chunk_size || fail(1, "the allocation is of %zu bytes, and the offer says %" PRIu64, whole, o->chunk_size);
}

/* map_device imports the chunks and maps them side by side. */
static bool map_device(struct memory *m, const struct offer *o, const int *fds)
{
	if (!find_device(m, o))
		return false;
	CUmemLocation here = {.type = 1 /* device */, .id = m->device};
	CUmemAllocationProp prop = {.type = 1 /* pinned */, .requestedHandleTypes = 1 /* descriptors */, .location = here};
	size_t granularity;
	if (!call(cuMemGetAllocationGranularity, &granularity, &prop, 0 /* minimum */))
		return false;
	if (o->chunk_size % granularity)
		return fail(1, "the chunk size, %" PRIu64 ", is no multiple of the granularity here, %zu", o->chunk_size, granularity);
	if (!call(cuMemAddressReserve, &m->at, m->length, 0, 0, 0))
		return false;
	for (; m->maps < o->chunks; m->maps++) {
		uint32_t i = m->maps;
		if (!fds[i])
			return fail(1, "descriptor 0 cannot be imported; start this program with standard input open");
		if (!call(cuMemImportFromShareableHandle, &m->handle[i], (void *)(intptr_t)fds[i], 1))
			return false;
		m->handles++;
		if (!call(cuMemMap, m->at + i * m->chunk, m->chunk, 0, m->handle[i], 0))
			return false;
	}
	CUmemAccessDesc access = {.location = here, .flags = options.access == READ_WRITE ? 3 : 1};
	return call(cuMemSetAccess, m->at, m->length, &access, 1);
}

/* --- memory of either kind --- */

static bool map(struct memory *m, const struct offer *o, const int *fds)
{
	m->driver = o->driver;
	m->chunk = o->chunk_size;
	m->length = o->chunks * o->chunk_size;
	if (o->handle_type == LEGACY)
		return open_legacy(m, o);
	return m->driver == SOFT ? map_files(m, o, fds) : map_device(m, o, fds);
}

/* unmap gives back what there is, once, and goes on after a failure. */
static bool unmap(struct memory *m)
{
	bool ok = true;
	int driver = m->driver;
	m->driver = 0;
	if (driver != CUDA)
		return !driver || !m->at || !munmap((void *)(uintptr_t)m->at, m->length) || fail(1, "munmap: %s", strerror(errno));
	if (m->opened)
		ok &= call(cuIpcCloseMemHandle, m->opened), m->at = 0;
	for (uint32_t i = 0; i < m->maps; i++)
		ok &= call(cuMemUnmap, m->at + i * m->chunk, m->chunk);
	for (uint32_t i = 0; i < m->handles; i++)
		ok &= call(cuMemRelease, m->handle[i]);
	if (m->at)
		ok &= call(cuMemAddressFree, m->at, m->length);
	if (m->device >= 0)
		ok &= call(cuDevicePrimaryCtxRelease_v2, m->device);
	return ok;
}

static bool copy(const struct memory *m, unsigned char *to, uint64_t from, size_t n)
{
	if (m->driver == SOFT)
		memcpy(to, (const char *)(uintptr_t)m->at + from, n);
	else
		return call(cuMemcpyDtoH_v2, to, m->at + from, n);
	return true;
}

/* --- the demo's data --- */

/* find_salt checks the application data, and returns its salt. */
static bool find_salt(const struct offer *o, uint32_t *salt)
{
	const unsigned char *d = o->rest + o->name_length;
	if (o->data_length != 16 || get(d, 8) != (o->size + 3) / 4 || get(d + 12, 4))
		return fail(1, "the offer's data is not the demo's");
	*salt = options.salted ? options.salt : (uint32_t)get(d + 8, 4);
	return true;
}

/* verify compares all of the data. wrong is what to tell people, or empty. */
static bool verify(int sock, const struct memory *m, const struct offer *o, uint32_t salt, char *wrong, size_t room)
{
	static unsigned char piece[PIECE];
	uint64_t bad = 0, first = 0;
	uint32_t wanted = 0, found = 0;
	double beat = now();
	for (uint64_t at = 0; at < o->size; at += PIECE) {
		size_t n = o->size - at < PIECE ? o->size - at : PIECE;
		if (!copy(m, piece, at, n))
			return false;
		for (size_t k = 0; k < n; k += 4) {
			int bytes = n - k < 4 ? (int)(n - k) : 4;
			uint32_t i = (uint32_t)((at + k) / 4);
			uint32_t want = ((i * 2 + 1337) ^ 0xdeadbeef ^ salt) & (0xffffffff >> (8 * (4 - bytes)));
			uint32_t got = (uint32_t)get(piece + k, bytes);
			if (want != got && !bad++)
				first = (at + k) / 4, wanted = want, found = got;
		}
		if (now() - beat > 0.25) {
			if (!say_progress(sock, at + n, o->size))
				return false;
			beat = now();
		}
	}
	if (bad)
		snprintf(wrong, room, "data differs: first at index %" PRIu64 ", want 0x%08x, got 0x%08x; %" PRIu64 " %s wrong",
			 first, wanted, found, bad, bad == 1 ? "integer is" : "integers are");
	return true;
}

/* --- the conversation --- */

/* overflowed reports whether a uid may stand for any user of another user namespace. */
static bool overflowed(uid_t uid)
{
	unsigned overflow = 65534, a = 1, b = 1, n = 0;
	FILE *f = fopen("/proc/sys/kernel/overflowuid", "re");
	if (f) {
		if (fscanf(f, "%u", &overflow) != 1)
			overflow = 65534;
		fclose(f);
	}
	if (uid != overflow)
		return false;
	if ((f = fopen("/proc/self/uid_map", "re"))) {
		if (fscanf(f, "%u %u %u", &a, &b, &n) != 3)
			n = 0;
		fclose(f);
	}
	return a || b || n != 4294967295u;
}

/* dial connects to a producer that is admitted, or is -1. */
static int dial(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	size_t n = strlen(options.socket);
	if (!n || n >= sizeof address.sun_path)
		return fail(2, "a socket's path has 1 to 107 bytes: %s", options.socket), -1;
	memcpy(address.sun_path, options.socket, n);
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (sock < 0)
		return fail(1, "socket: %s", strerror(errno)), -1;
	/* The kernel bounds a connect that waits for room by the time to send. */
	struct timeval t = {.tv_sec = (time_t)options.timeout};
	t.tv_usec = (suseconds_t)((options.timeout - (double)t.tv_sec) * 1e6);
	setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
	struct ucred peer;
	socklen_t length = sizeof peer;
	if (connect(sock, (struct sockaddr *)&address, sizeof address)) {
		if (errno == EAGAIN)
			fail(4, "%s: the producer did not accept within %g s", options.socket, options.timeout);
		else
			fail(1, "%s: nobody is listening there: %s; start the producer first, with the same -socket", options.socket, strerror(errno));
	} else if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &length)) {
		fail(1, "SO_PEERCRED: %s", strerror(errno));
	} else if (overflowed(peer.uid) || (peer.uid != geteuid() && (long)peer.uid != options.uid)) {
		fail(1, "%s: uid %u is not admitted (pid %d gid %u)", options.socket, peer.uid, peer.pid, peer.gid);
	} else {
		printf("Connected to producer pid %d uid %u gid %u\n", peer.pid, peer.uid, peer.gid);
		return sock;
	}
	return -1; /* sock is left to the end of the process, as in main */
}

/* attach maps the offer's memory, verifies it, and unmaps it before the verdict, because the
 * producer may free legacy memory after that. */
static bool attach(int sock, int driver, struct memory *m, bool *mapped)
{
	static struct offer o;
	static int fds[MAX_CHUNKS];
	int nfds = 0;
	uint32_t salt = 0;
	char wrong[200] = "";
	bool ok = take(sock, driver, &o, fds, &nfds) && find_salt(&o, &salt);
	if (ok && o.handle_type == LEGACY)
		printf("Received an IPC handle, size: %" PRIu64 " bytes\n", o.size);
	else if (ok)
		printf("Received %d descriptor%s, size: %" PRIu64 " bytes\n", nfds, nfds == 1 ? "" : "s", o.size);
	ok = ok && map(m, &o, fds);
	close_fds(fds, &nfds); /* the mapping keeps the memory */
	if (!ok)
		return false;
	bool writable = options.access == READ_WRITE || o.handle_type == LEGACY;
	printf("Mapped the memory %s\n", writable ? "read-write" : "read-only");
	if (!say_mapped(sock, &o, mapped) || !verify(sock, m, &o, salt, wrong, sizeof wrong) || !unmap(m))
		return false;
	printf("Data verification %s (%" PRIu64 " integers)\n", *wrong ? "FAILED" : "PASSED", (o.size + 3) / 4);
	if (!say_verdict(sock, !*wrong, wrong))
		return false;
	printf("Sent acknowledgment to producer\n");
	return !*wrong || fail(1, "%s", wrong);
}

/* seconds reads a duration with a unit, ms, s or m, or a number of seconds. */
static double seconds(const char *value, char **end)
{
	double n = strtod(value, end);
	if (*end == value || !**end)
		return n;
	double unit = !strcmp(*end, "ms") ? 1e-3 : !strcmp(*end, "s") ? 1 : !strcmp(*end, "m") ? 60 : 0;
	if (unit > 0)
		*end += strlen(*end);
	return n * unit;
}

/* usage reads the flags. */
static bool usage(int argc, char **argv)
{
	static char path[4096];
	const char *runtime = getenv("XDG_RUNTIME_DIR"), *tmp = getenv("TMPDIR");
	if (runtime && *runtime == '/')
		snprintf(path, sizeof path, "%s/gpufd/producer.sock", runtime);
	else
		snprintf(path, sizeof path, "%s/gpufd-%u/producer.sock", tmp && *tmp ? tmp : "/tmp", getuid());
	options.socket = path;
	const char *driver = getenv("GPUFD_DRIVER"), *access = "ro";
	for (int i = 1; i < argc; i += 2) {
		const char *flag = argv[i] + (!strncmp(argv[i], "--", 2)), *value = i + 1 < argc ? argv[i + 1] : NULL;
		char *end = "";
		if (!value)
			return fail(2, "%s takes a value", argv[i]);
		if (!strcmp(flag, "-socket"))
			options.socket = value;
		else if (!strcmp(flag, "-driver"))
			driver = value;
		else if (!strcmp(flag, "-access"))
			access = value;
		else if (!strcmp(flag, "-timeout"))
			options.timeout = seconds(value, &end);
		else if (!strcmp(flag, "-expect-salt"))
			options.salted = true, options.salt = (uint32_t)strtoul(value, &end, 0);
		else if (!strcmp(flag, "-allow-uid"))
			options.uid = strtol(value, &end, 10);
		else
			return fail(2, "%s is no flag of this program", argv[i]);
		if (end == value || *end)
			return fail(2, "%s %s: want a number", argv[i], value);
	}
	if (!driver || !*driver || !strcmp(driver, "auto"))
		options.driver = 0;
	else if (!strcmp(driver, "cuda") || !strcmp(driver, "soft"))
		options.driver = *driver == 'c' ? CUDA : SOFT;
	else
		return fail(2, "-driver is auto, cuda or soft, not %s", driver);
	if (strcmp(access, "ro") && strcmp(access, "rw"))
		return fail(2, "-access is ro or rw, not %s", access);
	options.access = access[1] == 'w' ? READ_WRITE : READ_ONLY;
	if (!(options.timeout > 0 && options.timeout < 1e6))
		return fail(2, "-timeout is a positive duration");
	return true;
}

/* part tells the producer of a failure that it does not know of. It takes a second at most. */
static void part(int sock, bool mapped)
{
	char text[sizeof failure];
	int code = status;
	if (over && !refusal)
		return;
	memcpy(text, failure, sizeof text);
	status = 0; /* what fails from now on is of no interest */
	if (options.timeout > 1)
		options.timeout = 1;
	if (mapped && refusal) {
		unsigned char body[4 + SAYS];
		unsigned char *end = put_text(put(body, refusal, 2), text);
		transmit(sock, REFUSE, body, (size_t)(end - body));
	} else {
		say_verdict(sock, false, text);
	}
	memcpy(failure, text, sizeof text);
	status = code;
}

int main(int argc, char **argv)
{
	static struct memory m = {.device = -1};
	struct rlimit files;
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!getrlimit(RLIMIT_NOFILE, &files)) {
		files.rlim_cur = files.rlim_max; /* each chunk is a descriptor */
		setrlimit(RLIMIT_NOFILE, &files);
	}
	int driver = usage(argc, argv) ? choose() : 0, sock = driver ? dial() : -1;
	if (sock >= 0) {
		bool mapped = false;
		bool done = attach(sock, driver, &m, &mapped);
		unmap(&m); /* of legacy memory, before the producer hears of it */
		if (!done)
			part(sock, mapped);
		/* sock is left to the end of the process. To close it drops what is in its queue,
		 * and a descriptor there could make that wait (SO_LINGER). */
	}
	if (status)
		fprintf(stderr, "consumer.c: %s\n", failure);
	return status;
}
