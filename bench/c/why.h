/*
 * What handoff.c can be made to do otherwise, to find out why another program
 * takes longer. Each flag adds one thing that a Go program does and this one does
 * not; without flags nothing changes. SIDES is a value for both processes, or
 * PRODUCER/CONSUMER.
 *
 *	-wait SIDES      sleep (in recvmsg), poll (in epoll_wait, on the same thread), thread
 *	                 (a thread in epoll_wait wakes the one that receives), spin
 *	-hop HOW         sleep, spin: each step of the import runs on another of two threads
 *	                 than the one before, which sleep or spin between
 *	-wakes N         before each step of the import, N threads are woken that go to sleep again
 *	-threads SIDES   so many more threads, which sleep
 *	-spinners SIDES  so many more threads, which spin during a handoff
 *	-mappings SIDES  so many more mappings, of 1 MiB each, with all pages touched
 *	-properties 1    the import asks for the properties of the memory, too
 *	-readonly 1      the consumer maps read-only
 *	-current 0       the thread that imports has no current context
 *	-half consumer   be the consumer only, on the socket with descriptor 3
 *	-with CMD:ARG:…  start that as the consumer
 */
#include <limits.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/mman.h>

enum wait { SLEEP, POLL, THREAD, SPIN };
static const char *const wait_names[] = {"sleep", "poll", "thread", "spin"};

/* how is what the flags say, for this process. */
static struct {
	enum wait wait;
	int hop; /* enum wait; -1 is no hopping */
	int wakes, threads, spinners, mappings;
	bool properties, readonly, nocurrent, half;
	char *with;
} how = {.hop = -1};

/* awake is whether a handoff is under way, for who spins. */
static atomic_bool awake;

/* down takes a semaphore; who spins does so until the handoff is over. */
static void down(sem_t *s, bool spin)
{
	while (spin && atomic_load(&awake))
		if (!sem_trywait(s))
			return;
	while (sem_wait(s))
		;
}

static void start_thread(void *(*f)(void *), void *arg)
{
	pthread_t t;
	if (pthread_create(&t, NULL, f, arg)) {
		perror("handoff: pthread_create");
		exit(1);
	}
}

/* --- waiting for a record --- */

static int epoll = -1;
static sem_t arrived;

static void *poller(void *unused)
{
	struct epoll_event e;
	for (;;)
		if (epoll_wait(epoll, &e, 1, -1) == 1)
			sem_post(&arrived);
	return unused;
}

/* watch prepares for waiting for records of sock otherwise than in recvmsg. */
static void watch(int sock)
{
	struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET};
	if (how.wait != POLL && how.wait != THREAD)
		return;
	epoll = epoll_create1(EPOLL_CLOEXEC);
	if (epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, sock, &e)) {
		perror("handoff: epoll");
		exit(1);
	}
	sem_init(&arrived, 0, 0);
	if (how.wait == THREAD)
		start_thread(poller, NULL);
}

/* take is recvmsg that waits as it was told to. */
static ssize_t take(int sock, struct msghdr *m, int flags)
{
	if (how.wait == SLEEP || (how.wait == SPIN && !atomic_load(&awake)))
		return recvmsg(sock, m, flags);
	for (struct msghdr again = *m;; *m = again) {
		ssize_t got = recvmsg(sock, m, flags | MSG_DONTWAIT);
		if (got >= 0 || errno != EAGAIN)
			return got;
		struct epoll_event e;
		if (how.wait == POLL && !epoll_wait(epoll, &e, 1, DEADLINE * 1000))
			return -1; /* errno is EAGAIN, as recvmsg has it */
		if (how.wait == THREAD)
			down(&arrived, false);
	}
}

/* --- threads and mappings that are just there --- */

static sem_t never, begun, to_wake;

static void *sleeper(void *unused)
{
	for (;;)
		down(&never, false);
	return unused;
}

static void *spinner(void *unused)
{
	for (;;) {
		down(&begun, false);
		while (atomic_load(&awake))
			;
	}
	return unused;
}

static void *woken(void *unused)
{
	for (;;)
		down(&to_wake, false);
	return unused;
}

/* crowd makes the threads and mappings that were asked for. */
static void crowd(void)
{
	sem_init(&never, 0, 0);
	sem_init(&begun, 0, 0);
	sem_init(&to_wake, 0, 0);
	for (int i = 0; i < how.threads; i++)
		start_thread(sleeper, NULL);
	for (int i = 0; i < how.spinners; i++)
		start_thread(spinner, NULL);
	for (int i = 0; i < how.wakes; i++)
		start_thread(woken, NULL);
	const size_t size = 1 << 20;
	for (int i = 0; i < how.mappings; i++) { /* a hole behind each, or they were one */
		char *p = mmap(NULL, 2 * size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (p == MAP_FAILED || mprotect(p, size, PROT_READ | PROT_WRITE)) {
			perror("handoff: mmap");
			exit(1);
		}
		memset(p, 1, size);
	}
}

static void begin(void)
{
	atomic_store(&awake, true);
	for (int i = 0; i < how.spinners; i++)
		sem_post(&begun);
}

static void end(void) { atomic_store(&awake, false); }

/* --- steps on other threads --- */

struct buffer;
struct steps;
typedef bool phase(struct buffer *, struct steps *);

static struct {
	sem_t go[2], done;
	int next;
	phase *f;
	struct buffer *b;
	struct steps *s;
	bool ok;
	void (*prepare)(void); /* what each thread does first */
} hop;

static void *hopper(void *go)
{
	hop.prepare();
	for (;;) {
		down(go, how.hop == SPIN);
		hop.ok = hop.f(hop.b, hop.s);
		sem_post(&hop.done);
	}
	return NULL;
}

static void start_hoppers(void (*prepare)(void))
{
	if (how.hop < 0)
		return;
	hop.prepare = prepare;
	sem_init(&hop.done, 0, 0);
	for (int i = 0; i < 2; i++) {
		sem_init(&hop.go[i], 0, 0);
		start_thread(hopper, &hop.go[i]);
	}
}

/* run does a step of the import, here or on the thread whose turn it is. */
static bool run(phase *f, struct buffer *b, struct steps *s)
{
	for (int i = 0; i < how.wakes; i++)
		sem_post(&to_wake);
	if (how.hop < 0)
		return f(b, s);
	hop.f = f, hop.b = b, hop.s = s;
	sem_post(&hop.go[hop.next]);
	hop.next = !hop.next;
	down(&hop.done, how.hop == SPIN);
	return hop.ok;
}

static bool nothing(struct buffer *b, struct steps *s)
{
	(void)b, (void)s;
	return true;
}

/* rouse has both threads awake. */
static void rouse(void)
{
	for (int i = 0; how.hop >= 0 && i < 2; i++)
		run(nothing, NULL, NULL);
}

/* --- flags --- */

/* side is the part of value for a side: the whole, or what is before or behind "/". */
static const char *side(char *value, bool consumer)
{
	char *slash = strchr(value, '/');
	if (!slash)
		return value;
	if (consumer)
		return slash + 1;
	static char first[32];
	snprintf(first, sizeof first, "%.*s", (int)(slash - value), value);
	return first;
}

static bool number(const char *value, int *n)
{
	char *rest;
	long x = strtol(value, &rest, 10);
	*n = (int)x;
	return *value && !*rest && x >= 0 && x <= 100000;
}

static bool truth(const char *value, bool *b, bool inverse)
{
	*b = (*value == '1') != inverse;
	return (*value == '0' || *value == '1') && !value[1];
}

static int waiting(const char *value)
{
	for (int i = SLEEP; i <= SPIN; i++)
		if (!strcmp(value, wait_names[i]))
			return i;
	return -1;
}

/* flag takes one of the flags above, but for -half, for that side. */
static bool flag(const char *name, char *value, bool consumer)
{
	int n, w;
	bool b;
	const char *own = side(value, consumer);
	if (!strcmp(name, "-wait"))
		return (w = waiting(own)) >= 0 ? how.wait = (enum wait)w, true : false;
	if (!strcmp(name, "-threads"))
		return number(own, &how.threads);
	if (!strcmp(name, "-spinners"))
		return number(own, &how.spinners);
	if (!strcmp(name, "-mappings"))
		return number(own, &how.mappings);
	if (!strcmp(name, "-with"))
		return how.with = value, true;
	if (!strcmp(name, "-half"))
		return how.half = true, !strcmp(value, "consumer");
	/* The others are the consumer's. */
	if (!strcmp(name, "-hop")) {
		w = waiting(value);
		if (consumer)
			how.hop = w;
		return w == SLEEP || w == SPIN;
	}
	if (!strcmp(name, "-wakes"))
		return number(value, consumer ? &how.wakes : &n);
	if (!strcmp(name, "-properties"))
		return truth(value, consumer ? &how.properties : &b, false);
	if (!strcmp(name, "-readonly"))
		return truth(value, consumer ? &how.readonly : &b, false);
	if (!strcmp(name, "-current"))
		return truth(value, consumer ? &how.nocurrent : &b, true);
	return false;
}

/* become runs the program that is to be the consumer, with sock as descriptor 3. */
static void become(int sock)
{
	char *argv[64], *rest = how.with;
	int n = 0;
	while (rest && n < 63)
		argv[n++] = strsep(&rest, ":");
	argv[n] = NULL;
	if (sock == 3 ? fcntl(3, F_SETFD, 0) : dup2(sock, 3) < 0)
		_exit(1);
	execvp(argv[0], argv);
	perror("handoff: exec");
	_exit(1);
}
