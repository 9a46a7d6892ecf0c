/* A driver for the tests of handoff.c: device memory is a memfd, a handle its
 * descriptor. It frees nothing twice.
 * STUB_FAIL names a function that fails, or "salt", for reading what is not there, or
 * "die", for a consumer that does so when it imports. */
#define _GNU_SOURCE
#include "cuda.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int told(const char *what)
{
	const char *fail = getenv("STUB_FAIL");
	return fail && !strcmp(fail, what);
}

/* result is that of a function that did or did not do what it should. */
static CUresult result(const char *function, int ok)
{
	return told(function) ? CUDA_ERROR_OUT_OF_MEMORY : ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuInit(unsigned flags) { return result(__func__, !flags); }

CUresult cuDriverGetVersion(int *version)
{
	*version = 13000;
	return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
	*name = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_INVALID_VALUE";
	return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
	*text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of \"memory\"" : "invalid";
	return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	*device = ordinal;
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice device)
{
	*ctx = NULL;
	return result(__func__, device == 0 || device == 1);
}

CUresult cuCtxSetCurrent(CUcontext ctx) { return result(__func__, !ctx); }
CUresult cuCtxSynchronize(void) { return result(__func__, 1); }

/* nothing maps pages that nobody can read, at an address or anywhere. */
static void *nothing(void *at, size_t size, int fixed)
{
	return mmap(at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed, -1, 0);
}

CUresult cuMemAddressReserve(CUdeviceptr *p, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags)
{
	void *at = nothing(NULL, size, 0);
	*p = (CUdeviceptr)(uintptr_t)at;
	return result(__func__, at != MAP_FAILED && !alignment && !hint && !flags);
}

CUresult cuMemAddressFree(CUdeviceptr p, size_t size) { return result(__func__, !munmap((void *)(uintptr_t)p, size)); }

CUresult cuMemCreate(CUmemGenericAllocationHandle *h, size_t size, const CUmemAllocationProp *prop, unsigned long long flags)
{
	if (told(__func__))
		return CUDA_ERROR_OUT_OF_MEMORY;
	int fd = memfd_create("stub", MFD_CLOEXEC);
	*h = fd;
	return result(__func__, fd >= 0 && !ftruncate(fd, size) && prop->requestedHandleTypes && !flags);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle h) { return result(__func__, !close((int)h)); }

CUresult cuMemMap(CUdeviceptr p, size_t size, size_t offset, CUmemGenericAllocationHandle h, unsigned long long flags)
{
	void *at = (void *)(uintptr_t)p;
	int ok = mmap(at, size, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)h, offset) == at;
	return result(__func__, ok && !flags);
}

CUresult cuMemUnmap(CUdeviceptr p, size_t size)
{
	void *at = (void *)(uintptr_t)p;
	return result(__func__, nothing(at, size, MAP_FIXED) == at);
}

CUresult cuMemSetAccess(CUdeviceptr p, size_t size, const CUmemAccessDesc *desc, size_t n)
{
	return result(__func__, n == 1 && desc->flags && !mprotect((void *)(uintptr_t)p, size, PROT_READ | PROT_WRITE));
}

CUresult cuMemExportToShareableHandle(void *fd, CUmemGenericAllocationHandle h, CUmemAllocationHandleType type, unsigned long long flags)
{
	if (told(__func__))
		return CUDA_ERROR_OUT_OF_MEMORY;
	*(int *)fd = fcntl((int)h, F_DUPFD_CLOEXEC, 0);
	return result(__func__, *(int *)fd >= 0 && type && !flags);
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *h, void *fd, CUmemAllocationHandleType type)
{
	if (told("die"))
		_exit(9);
	if (told(__func__))
		return CUDA_ERROR_OUT_OF_MEMORY;
	*h = fcntl((int)(intptr_t)fd, F_DUPFD_CLOEXEC, 0);
	return result(__func__, (int)*h >= 0 && type);
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle h)
{
	memset(prop, 0, sizeof *prop);
	return result(__func__, fcntl((int)h, F_GETFD) >= 0);
}

CUresult cuMemsetD8(CUdeviceptr p, unsigned char value, size_t n)
{
	memset((void *)(uintptr_t)p, value, n);
	return result(__func__, 1);
}

CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t n)
{
	memcpy((void *)(uintptr_t)to, from, n);
	return result(__func__, 1);
}

CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t n)
{
	memcpy(to, (void *)(uintptr_t)from, n);
	if (told("salt"))
		++*(char *)to;
	return result(__func__, 1);
}
