/*
 * link: how fast bytes go between device 0 and memory of the host, in plain C, in both directions.
 *
 *	gcc -O2 -Wall -Wextra -o link link.c
 *	link 8
 *
 * moves 8 GiB five times each way, to and from memory of the host's NUMA node 0 that another process has made and
 * exported, in chunks of 1 GiB, to which only the device has access here; and to and from pinned memory of
 * cuMemHostAlloc. It prints one JSON object: GB/s, 10^9 bytes, the medians.
 */
#include "pair.h"

enum { ROUNDS = 5 };

static const size_t GIB = (size_t)1 << 30;

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* move copies size bytes one way, some times, and returns the median rate. */
static double move(void (*copy)(CUdeviceptr, void *, size_t), CUdeviceptr device, void *host, size_t size)
{
	double rates[ROUNDS];
	for (int i = -1; i < ROUNDS; i++) { /* the first is not counted */
		int64_t begun = now();
		copy(device, host, size);
		must(cuCtxSynchronize(), "cuCtxSynchronize");
		if (i >= 0)
			rates[i] = (double)size / (double)(now() - begun);
	}
	qsort(rates, ROUNDS, sizeof *rates, ascending);
	return rates[ROUNDS / 2];
}

static void numa_out(CUdeviceptr device, void *host, size_t size)
{
	must(cuMemcpy((CUdeviceptr)(uintptr_t)host, device, size), "cuMemcpy to the host");
}

static void numa_in(CUdeviceptr device, void *host, size_t size)
{
	must(cuMemcpy(device, (CUdeviceptr)(uintptr_t)host, size), "cuMemcpy from the host");
}

static void pinned_out(CUdeviceptr device, void *host, size_t size) { must(cuMemcpyDtoH(host, device, size), "cuMemcpyDtoH"); }
static void pinned_in(CUdeviceptr device, void *host, size_t size) { must(cuMemcpyHtoD(device, host, size), "cuMemcpyHtoD"); }

/* print_rates prints both rates under a name. */
static void print_rates(const char *name, double to_host, double to_device)
{
	printf(",\"%s\":{\"to_host\":%.1f,\"to_device\":%.1f}", name, to_host, to_device);
}

/* make makes memory of the host, gives the other process its descriptors, and waits for its end. */
static void make(int other, size_t gib)
{
	for (size_t i = 0; i < gib; i++)
		say(other, &i, sizeof i, export_fd(create((CUmemLocation){HOST_NUMA, 0}, GIB)));
	hear(other, &gib, sizeof gib);
}

/* imported maps the other process's memory. */
static CUdeviceptr imported(int other, size_t gib)
{
	CUhandle *handles = calloc(gib, sizeof *handles);
	CUdeviceptr at = reserve(gib * GIB);
	size_t i;
	for (size_t n = 0; n < gib; n++) {
		int fd = hear(other, &i, sizeof i);
		handles[n] = import_fd(fd);
		close(fd);
	}
	map_at(at, handles, gib, GIB, READ_WRITE);
	free(handles);
	return at;
}

int main(int argc, char **argv)
{
	size_t gib = argc == 2 ? strtoul(argv[1], NULL, 10) : 0;
	int maker, other;
	void *pinned;
	CUhandle device;
	if (!gib) {
		fprintf(stderr, "usage: link GIB\n");
		return 2;
	}
	other = part(&maker);
	open_device();
	if (maker) {
		make(other, gib);
		return 0;
	}
	CUdeviceptr at = reserve(gib * GIB), numa = imported(other, gib);
	device = create((CUmemLocation){DEVICE, 0}, gib * GIB);
	map_at(at, &device, 1, gib * GIB, READ_WRITE);
	must(cuMemsetD8(at, 0x5a, gib * GIB), "cuMemsetD8");
	must(cuMemHostAlloc(&pinned, gib * GIB, 0), "cuMemHostAlloc");
	void *host = (void *)(uintptr_t)numa;
	printf("{\"gib\":%zu", gib);
	print_rates("imported", move(numa_out, at, host, gib * GIB), move(numa_in, at, host, gib * GIB));
	print_rates("pinned", move(pinned_out, at, pinned, gib * GIB), move(pinned_in, at, pinned, gib * GIB));
	printf("}\n");
	must(cuMemFreeHost(pinned), "cuMemFreeHost");
	return 0;
}
