/*
 * chunks: what many chunks of GPU memory cost that came as descriptors, in plain C: the
 * bare driver calls, once for all chunks where the driver allows that.
 *
 *	gcc -O2 -Wall -Wextra -I/usr/local/cuda/include -o chunks chunks.c -lcuda
 *	chunks
 *
 * The descriptors from 3 on are chunks on device 0. To each line "chunks N SIZE" on standard
 * input it imports the first N, each of SIZE bytes, reserves address space, maps them side by
 * side read-only and sets access for all, which is the time; then it unmaps all, frees the
 * address space and releases the handles, which are steps. It answers one JSON object a line,
 * as the rivals of bench/README.md do, and ends with its input.
 */
#include "driver.h"
#include <stdlib.h>
#include <sys/resource.h>

enum { DESCRIPTOR = 3, MOST = 4096 };

static CUmemGenericAllocationHandle handle[MOST];

static const char *const names[] = {"import", "reserve", "map", "access", "unmap", "release"};
enum { IMPORT, RESERVE, MAP, ACCESS, UNMAP, RELEASE, STEPS };

/* chunks is how far the work came, so that a failure half-way can be undone. */
struct chunks {
	CUdeviceptr at;
	uint64_t size; /* of each */
	int n, imported, mapped;
	int64_t begun, end[STEPS];
};

static bool import(struct chunks *c)
{
	for (; c->imported < c->n; c->imported++)
		if (!cu(cuMemImportFromShareableHandle(&handle[c->imported], (void *)(uintptr_t)(DESCRIPTOR + c->imported),
						       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
			"cuMemImportFromShareableHandle"))
			return false;
	return true;
}

static bool map(struct chunks *c)
{
	for (; c->mapped < c->n; c->mapped++)
		if (!cu(cuMemMap(c->at + c->mapped * c->size, c->size, 0, handle[c->mapped], 0), "cuMemMap"))
			return false;
	return true;
}

static bool attach(struct chunks *c)
{
	CUmemAccessDesc access = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READ,
	};
	c->begun = now();
	bool ok = import(c);
	c->end[IMPORT] = now();
	ok = ok && cu(cuMemAddressReserve(&c->at, c->n * c->size, 0, 0, 0), "cuMemAddressReserve");
	c->end[RESERVE] = now();
	ok = ok && map(c);
	c->end[MAP] = now();
	ok = ok && cu(cuMemSetAccess(c->at, c->n * c->size, &access, 1), "cuMemSetAccess");
	c->end[ACCESS] = now();
	return ok;
}

static bool detach(struct chunks *c)
{
	bool ok = true;
	if (c->mapped)
		ok &= cu(cuMemUnmap(c->at, c->mapped * c->size), "cuMemUnmap");
	if (c->at)
		ok &= cu(cuMemAddressFree(c->at, c->n * c->size), "cuMemAddressFree");
	c->end[UNMAP] = now();
	for (int i = 0; i < c->imported; i++)
		ok &= cu(cuMemRelease(handle[i]), "cuMemRelease");
	c->end[RELEASE] = now();
	return ok;
}

static void answer(int n, uint64_t size)
{
	struct chunks c = {.n = n, .size = size};
	failure[0] = 0;
	bool ok = attach(&c);
	ok &= detach(&c);
	if (!ok) {
		print_error();
		return;
	}
	printf("{\"ns\":%" PRId64 ",\"steps\":[", c.end[ACCESS] - c.begun);
	for (int i = 0; i < STEPS; i++) {
		int64_t at = (i ? c.end[i - 1] : c.begun) - c.begun;
		printf("%s{\"side\":\"consumer\",\"name\":\"%s\",\"at\":%" PRId64 ",\"ns\":%" PRId64 "}",
		       i ? "," : "", names[i], at, c.end[i] - c.begun - at);
	}
	printf("]}\n");
}

static bool open_device(void)
{
	CUdevice device;
	CUcontext context;
	return cu(cuInit(0), "cuInit") && cu(cuDeviceGet(&device, 0), "cuDeviceGet") &&
	       cu(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain") &&
	       cu(cuCtxSetCurrent(context), "cuCtxSetCurrent");
}

/* more_files raises the limit on descriptors, of which the driver may make some. */
static void more_files(void)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_NOFILE, &limit))
		return;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	more_files();
	if (!open_device()) {
		print_error();
		return 1;
	}
	printf("{\"ready\":true,\"name\":\"c\"}\n");
	char line[100];
	while (fgets(line, sizeof line, stdin)) {
		int n;
		uint64_t size;
		if (sscanf(line, "chunks %d %" SCNu64, &n, &size) == 2 && n > 0 && n <= MOST)
			answer(n, size);
		else
			printf("{\"error\":\"want chunks N SIZE\"}\n");
	}
	return 0;
}
