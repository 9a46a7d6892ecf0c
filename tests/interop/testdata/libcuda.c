/*
 * A libcuda that has legacy IPC and nothing else: the allocation behind a handle is the
 * file $STUB_MEMORY, opened by the handle whose byte i is 3i + 1. What is opened and closed
 * is noted in $STUB_LOG. $STUB_OPEN is what opening returns. Copies wait while there is a file
 * $STUB_HOLD, for a minute at most.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct { unsigned char reserved[64]; } handle;

static unsigned char *memory;
static size_t size;

static int no(void) { return 801; }
static int note(const char *line)
{
	FILE *f = fopen(getenv("STUB_LOG"), "a");
	if (!f || fputs(line, f) < 0 || fclose(f))
		return 999;
	return 0;
}

int cuInit(unsigned flags) { return (int)flags; }
int cuGetErrorName(int error, const char **name) { return *name = "STUB_ERROR", error < 0; }
int cuGetErrorString(int error, const char **text) { return *text = "as the test wants", error < 0; }
int cuDeviceGetCount(int *count) { return *count = 1, 0; }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, ordinal != 0; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) { return memset(uuid, 0xa5, 16), device; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = &memory, device; }
int cuDevicePrimaryCtxRelease_v2(int device) { return device; }
int cuCtxSetCurrent(void *context) { return context != &memory; }

int cuIpcOpenMemHandle_v2(uint64_t *at, handle h, unsigned flags)
{
	struct stat st;
	int fd = open(getenv("STUB_MEMORY"), O_RDWR | O_CLOEXEC);
	if (getenv("STUB_OPEN"))
		return atoi(getenv("STUB_OPEN"));
	for (int i = 0; i < 64; i++)
		if (h.reserved[i] != (unsigned char)(3 * i + 1))
			return 1;
	if (flags != 1 || memory || fd < 0 || fstat(fd, &st))
		return 1;
	size = (size_t)st.st_size;
	memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	*at = (uint64_t)(uintptr_t)memory;
	return memory == MAP_FAILED ? 1 : note("opened\n");
}

int cuIpcCloseMemHandle(uint64_t at)
{
	if (!memory || at != (uint64_t)(uintptr_t)memory || munmap(memory, size))
		return 1;
	memory = NULL;
	return note("closed\n");
}

int cuMemGetAddressRange_v2(uint64_t *base, size_t *whole, uint64_t at)
{
	*base = at, *whole = size;
	return at != (uint64_t)(uintptr_t)memory;
}

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t n)
{
	uint64_t begin = (uint64_t)(uintptr_t)memory;
	const char *hold = getenv("STUB_HOLD");
	for (int ms = 0; hold && !access(hold, F_OK) && ms < 60000; ms++)
		usleep(1000);
	if (!memory || from < begin || n > size || from - begin > size - n)
		return 1;
	memcpy(to, (void *)(uintptr_t)from, n);
	return 0;
}

int cuMemGetAllocationGranularity(void) { return no(); }
int cuMemImportFromShareableHandle(void) { return no(); }
int cuMemAddressReserve(void) { return no(); }
int cuMemMap(void) { return no(); }
int cuMemSetAccess(void) { return no(); }
int cuMemUnmap(void) { return no(); }
int cuMemAddressFree(void) { return no(); }
int cuMemRelease(void) { return no(); }
