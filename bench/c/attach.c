/*
 * attach: what mapping GPU memory costs that came as a descriptor, in plain C: the
 * bare driver calls.
 *
 *	gcc -O2 -Wall -Wextra -I/usr/local/cuda/include -o attach attach.c -lcuda
 *	attach
 *
 * Descriptor 3 is that of one allocation on device 0. To each line "attach SIZE" on
 * standard input it imports, reserves, maps read-only and sets access, which is
 * timed, and undoes it, which is not. It answers one JSON object a line, as the
 * rivals of bench/README.md do, and ends with its input.
 */
#include "driver.h"

enum { DESCRIPTOR = 3 };

static bool open_device(void)
{
	CUdevice device;
	CUcontext context;
	return cu(cuInit(0), "cuInit") && cu(cuDeviceGet(&device, 0), "cuDeviceGet") &&
	       cu(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain") &&
	       cu(cuCtxSetCurrent(context), "cuCtxSetCurrent");
}

/* mapping is how far attach came, so that a failure half-way can be undone. */
struct mapping {
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;
	bool imported, mapped;
	int64_t begun, end[4]; /* of each call */
};

static const char *const calls[] = {"import", "reserve", "map", "access"};

static bool attach(struct mapping *m, uint64_t size)
{
	CUmemAccessDesc access = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READ,
	};
	m->begun = now();
	m->imported = cu(cuMemImportFromShareableHandle(&m->handle, (void *)(uintptr_t)DESCRIPTOR,
						       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
			 "cuMemImportFromShareableHandle");
	m->end[0] = now();
	if (!m->imported || !cu(cuMemAddressReserve(&m->at, size, 0, 0, 0), "cuMemAddressReserve"))
		return false;
	m->end[1] = now();
	m->mapped = cu(cuMemMap(m->at, size, 0, m->handle, 0), "cuMemMap");
	m->end[2] = now();
	bool ok = m->mapped && cu(cuMemSetAccess(m->at, size, &access, 1), "cuMemSetAccess");
	m->end[3] = now();
	return ok;
}

static bool detach(struct mapping *m, uint64_t size)
{
	bool ok = true;
	if (m->mapped)
		ok &= cu(cuMemUnmap(m->at, size), "cuMemUnmap");
	if (m->at)
		ok &= cu(cuMemAddressFree(m->at, size), "cuMemAddressFree");
	if (m->imported)
		ok &= cu(cuMemRelease(m->handle), "cuMemRelease");
	return ok;
}

static void answer(uint64_t size)
{
	struct mapping m = {0};
	failure[0] = 0;
	bool ok = attach(&m, size);
	ok &= detach(&m, size);
	if (!ok) {
		print_error();
		return;
	}
	printf("{\"ns\":%" PRId64 ",\"steps\":[", m.end[3] - m.begun);
	for (int i = 0; i < 4; i++) {
		int64_t at = (i ? m.end[i - 1] : m.begun) - m.begun;
		printf("%s{\"side\":\"consumer\",\"name\":\"%s\",\"at\":%" PRId64 ",\"ns\":%" PRId64 "}",
		       i ? "," : "", calls[i], at, m.end[i] - m.begun - at);
	}
	printf("]}\n");
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!open_device()) {
		print_error();
		return 1;
	}
	printf("{\"ready\":true,\"name\":\"c\"}\n");
	char line[100];
	while (fgets(line, sizeof line, stdin)) {
		uint64_t size;
		if (sscanf(line, "attach %" SCNu64, &size) == 1)
			answer(size);
		else
			printf("{\"error\":\"want attach SIZE\"}\n");
	}
	return 0;
}
