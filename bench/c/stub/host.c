/* What link.c calls besides: memory of the host, and copies between any two addresses. */
#include "cuda.h"
#include <stdlib.h>
#include <string.h>

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t n)
{
	memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, n);
	return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **p, size_t n, unsigned flags)
{
	*p = flags ? NULL : malloc(n);
	return *p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemFreeHost(void *p)
{
	free(p);
	return CUDA_SUCCESS;
}
