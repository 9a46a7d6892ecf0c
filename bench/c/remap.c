/*
 * remap: what giving up another process's memory and getting it back at the same address costs, in plain C: the bare
 * driver calls.
 *
 *	gcc -O2 -Wall -Wextra -o remap remap.c
 *	echo remap 64 1073741824 | remap
 *
 * To each line "remap COUNT SIZE" on standard input one process imports COUNT allocations of SIZE bytes that the other
 * one has made and filled, maps them side by side in a reservation and sets access, once for all; it reads a byte of each;
 * then it unmaps and releases all. It has the descriptors and the reservation already. The answer is one JSON object a
 * line, as in bench/README.md: "each" has the nanoseconds until access was set, and those of unmapping and releasing.
 * The memory stays until a line asks for another COUNT or SIZE, and goes at the end of the input.
 */
#include "pair.h"

enum { MOST = 1024 };

struct shape {
	size_t count, size;
};

/* held is the memory of one shape: in the process that made it, or by its descriptors in the other. */
static struct {
	struct shape shape;
	CUdeviceptr at;
	CUhandle handles[MOST];
	int fds[MOST];
} held;

static unsigned char pattern(size_t chunk) { return chunk * 7 + 1; }

static void release_all(void)
{
	struct shape s = held.shape;
	must(cuMemUnmap(held.at, s.count * s.size), "cuMemUnmap");
	for (size_t i = 0; i < s.count; i++)
		must(cuMemRelease(held.handles[i]), "cuMemRelease");
}

/* forget gives up what is held of a shape; mapped says whether it is mapped. */
static void forget(int mapped)
{
	if (!held.shape.count)
		return;
	if (mapped)
		release_all();
	must(cuMemAddressFree(held.at, held.shape.count * held.shape.size), "cuMemAddressFree");
	for (size_t i = 0; i < held.shape.count; i++)
		close(held.fds[i]);
	held.shape.count = 0;
}

/* make makes and fills memory, and gives the other process its descriptors. */
static void make(int other, struct shape s)
{
	say(other, &s, sizeof s, -1);
	forget(1);
	held.shape = s;
	held.at = reserve(s.count * s.size);
	for (size_t i = 0; i < s.count; i++)
		held.handles[i] = create((CUmemLocation){DEVICE, 0}, s.size);
	map_at(held.at, held.handles, s.count, s.size, READ_WRITE);
	for (size_t i = 0; i < s.count; i++) {
		must(cuMemsetD8(held.at + i * s.size, pattern(i), s.size), "cuMemsetD8");
		held.fds[i] = export_fd(held.handles[i]);
	}
	must(cuCtxSynchronize(), "cuCtxSynchronize");
	for (size_t i = 0; i < s.count; i++)
		say(other, &i, sizeof i, held.fds[i]);
}

/* take gets ready for memory of a shape. */
static void take(int other, struct shape s)
{
	size_t i;
	forget(0);
	held.at = reserve(s.count * s.size);
	held.shape = s;
	for (size_t n = 0; n < s.count; n++)
		held.fds[n] = hear(other, &i, sizeof i);
}

/* remap maps and unmaps once. */
static void remap(int64_t took[2])
{
	struct shape s = held.shape;
	int64_t begun = now();
	for (size_t i = 0; i < s.count; i++)
		held.handles[i] = import_fd(held.fds[i]);
	map_at(held.at, held.handles, s.count, s.size, READ);
	took[0] = now() - begun;
	for (size_t i = 0; i < s.count; i++) {
		unsigned char byte = 0;
		must(cuMemcpyDtoH(&byte, held.at + (i + 1) * s.size - 1, 1), "cuMemcpyDtoH");
		if (byte != pattern(i))
			die("remap", "a byte is not what was written");
	}
	begun = now();
	release_all();
	took[1] = now() - begun;
}

/* serve is the process that maps. A shape without chunks asks for a round. */
static void serve(int other)
{
	struct shape s;
	int64_t took[2];
	for (;;) {
		hear(other, &s, sizeof s);
		if (s.count) {
			take(other, s);
			continue;
		}
		remap(took);
		say(other, took, sizeof took, -1);
	}
}

int main(void)
{
	char line[100];
	int child, other = part(&child);
	struct shape s, round = {0, 0};
	int64_t took[2] = {0};
	open_device();
	if (child) {
		say(other, took, sizeof took, -1);
		serve(other);
	}
	hear(other, took, sizeof took);
	printf("{\"ready\":true,\"name\":\"c\",\"info\":\"bare calls\"}\n");
	while (fflush(stdout), fgets(line, sizeof line, stdin)) {
		if (sscanf(line, "remap %zu %zu", &s.count, &s.size) != 2 || !s.count || s.count > MOST || !s.size) {
			printf("{\"error\":\"want remap COUNT SIZE\"}\n");
			continue;
		}
		if (memcmp(&s, &held.shape, sizeof s))
			make(other, s);
		say(other, &round, sizeof round, -1);
		hear(other, took, sizeof took);
		printf("{\"each\":[%lld,%lld]}\n", (long long)took[0], (long long)took[1]);
	}
	return 0;
}
