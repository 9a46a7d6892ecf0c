/*
 * libcuda without its header, and opened at run time: a program is built where there is
 * neither a GPU nor the toolkit. Layouts are those of every LP64 Linux.
 */
#ifndef DLCUDA_H
#define DLCUDA_H
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef unsigned long long CUdeviceptr, CUhandle;
typedef struct {
	int type, id;
} CUmemLocation;
typedef struct {
	int type, handleTypes;
	CUmemLocation location;
	void *metadata;
	unsigned char flags[8];
} CUmemAllocationProp;
typedef struct {
	CUmemLocation location;
	int flags;
} CUmemAccessDesc;

enum { PINNED = 1, DESCRIPTOR = 1, DEVICE = 1, HOST_NUMA = 3, READ = 1, READ_WRITE = 3 };

/* DRIVER lists the functions: our name, the library's, the parameters. */
#define DRIVER(F)                                                                                     \
	F(cuInit, "cuInit", (unsigned))                                                               \
	F(cuGetErrorName, "cuGetErrorName", (int, const char **))                                     \
	F(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (void **, int))                       \
	F(cuCtxSetCurrent, "cuCtxSetCurrent", (void *))                                               \
	F(cuCtxSynchronize, "cuCtxSynchronize", (void))                                               \
	F(cuMemAddressReserve, "cuMemAddressReserve", (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long)) \
	F(cuMemAddressFree, "cuMemAddressFree", (CUdeviceptr, size_t))                                \
	F(cuMemCreate, "cuMemCreate", (CUhandle *, size_t, const CUmemAllocationProp *, unsigned long long)) \
	F(cuMemRelease, "cuMemRelease", (CUhandle))                                                   \
	F(cuMemMap, "cuMemMap", (CUdeviceptr, size_t, size_t, CUhandle, unsigned long long))          \
	F(cuMemUnmap, "cuMemUnmap", (CUdeviceptr, size_t))                                            \
	F(cuMemSetAccess, "cuMemSetAccess", (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))   \
	F(cuMemExportToShareableHandle, "cuMemExportToShareableHandle", (void *, CUhandle, int, unsigned long long)) \
	F(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle", (CUhandle *, void *, int)) \
	F(cuMemsetD8, "cuMemsetD8_v2", (CUdeviceptr, unsigned char, size_t))                          \
	F(cuMemcpyDtoH, "cuMemcpyDtoH_v2", (void *, CUdeviceptr, size_t))                             \
	F(cuMemcpyHtoD, "cuMemcpyHtoD_v2", (CUdeviceptr, const void *, size_t))                       \
	F(cuMemcpy, "cuMemcpy", (CUdeviceptr, CUdeviceptr, size_t))                                   \
	F(cuMemHostAlloc, "cuMemHostAlloc", (void **, size_t, unsigned))                              \
	F(cuMemFreeHost, "cuMemFreeHost", (void *))

#define DECLARE(name, symbol, parameters) static int(*name) parameters;
DRIVER(DECLARE)

/* die answers with what went wrong, as rivals do, and ends the process. */
__attribute__((noreturn)) static inline void die(const char *what, const char *why)
{
	printf("{\"error\":\"%s: %s\"}\n", what, why);
	fflush(stdout);
	exit(1);
}

/* must ends the process unless a call of the driver succeeded. */
static inline void must(int result, const char *call)
{
	const char *name = NULL;
	if (!result)
		return;
	cuGetErrorName(result, &name);
	die(call, name ? name : "unknown");
}

/* open_device opens the driver and the primary context of device 0. */
static inline void open_device(void)
{
	void *context, *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library)
		die("dlopen", "there is no libcuda.so.1");
#define FIND(name, symbol, parameters)                  \
	*(void **)&name = dlsym(library, symbol);       \
	if (!name)                                      \
		die(symbol, "libcuda does not have it");
	DRIVER(FIND)
	must(cuInit(0), "cuInit");
	must(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
	must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
}

/* map_at maps n handles of size bytes side by side, and sets the rights of device 0. */
static inline void map_at(CUdeviceptr at, const CUhandle *handles, size_t n, size_t size, int flags)
{
	CUmemAccessDesc access = {{DEVICE, 0}, flags};
	for (size_t i = 0; i < n; i++)
		must(cuMemMap(at + i * size, size, 0, handles[i], 0), "cuMemMap");
	must(cuMemSetAccess(at, n * size, &access, 1), "cuMemSetAccess");
}

static inline CUdeviceptr reserve(size_t size)
{
	CUdeviceptr at;
	must(cuMemAddressReserve(&at, size, 0, 0, 0), "cuMemAddressReserve");
	return at;
}

/* create makes memory that can be exported; import_fd makes a handle of a descriptor. */
static inline CUhandle create(CUmemLocation location, size_t size)
{
	CUmemAllocationProp prop = {.type = PINNED, .handleTypes = DESCRIPTOR, .location = location};
	CUhandle handle;
	must(cuMemCreate(&handle, size, &prop, 0), "cuMemCreate");
	return handle;
}

static inline int export_fd(CUhandle handle)
{
	int fd;
	must(cuMemExportToShareableHandle(&fd, handle, DESCRIPTOR, 0), "cuMemExportToShareableHandle");
	return fd;
}

static inline CUhandle import_fd(int fd)
{
	CUhandle handle;
	must(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, DESCRIPTOR), "cuMemImportFromShareableHandle");
	return handle;
}

/* now is CLOCK_MONOTONIC in nanoseconds. */
static inline int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

#endif
