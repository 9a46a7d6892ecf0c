/* The part of the driver API that the programs above use. cuda.c beside it has what
 * handoff.c calls, and stream.c what channel.c calls besides, which are tested where there
 * is neither a GPU nor the toolkit; hostfunc.c is only compiled there. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define CUDA_VERSION 13000
#define CUDA_CB

typedef int CUresult;
enum { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1, CUDA_ERROR_OUT_OF_MEMORY = 2, CUDA_ERROR_NOT_READY = 600 };

typedef int CUdevice;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUctxCreateParams_st CUctxCreateParams;
typedef void (*CUhostFn)(void *data);
typedef unsigned long long CUdeviceptr, CUmemGenericAllocationHandle;
typedef int CUmemAllocationHandleType;
typedef struct {
	int type, id;
} CUmemLocation;
typedef struct {
	CUmemLocation location;
	int flags;
} CUmemAccessDesc;
typedef struct {
	int type;
	CUmemAllocationHandleType requestedHandleTypes;
	CUmemLocation location;
} CUmemAllocationProp;

enum {
	CU_MEM_ACCESS_FLAGS_PROT_READ = 1,
	CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
	CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
	CU_MEM_ALLOCATION_TYPE_PINNED = 1,
	CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
	CU_MEM_LOCATION_TYPE_DEVICE = 1,
	CU_STREAM_NON_BLOCKING = 1,
	CU_STREAM_WAIT_VALUE_GEQ = 0,
	CU_STREAM_WAIT_VALUE_EQ = 1,
	CU_MEMHOSTREGISTER_PORTABLE = 1,
	CU_MEMHOSTREGISTER_DEVICEMAP = 2,
};

typedef enum {
	CU_STREAM_MEM_OP_WAIT_VALUE_64 = 4,
	CU_STREAM_MEM_OP_WRITE_VALUE_64 = 5,
} CUstreamBatchMemOpType;
typedef union {
	CUstreamBatchMemOpType operation;
	struct {
		CUstreamBatchMemOpType operation;
		CUdeviceptr address;
		union {
			uint32_t value;
			uint64_t value64;
		};
		unsigned flags;
		CUdeviceptr alias;
	} waitValue, writeValue;
	uint64_t pad[6];
} CUstreamBatchMemOpParams;

CUresult cuInit(unsigned flags);
CUresult cuDriverGetVersion(int *version);
CUresult cuGetErrorName(CUresult error, const char **name);
CUresult cuGetErrorString(CUresult error, const char **text);
CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext ctx);
CUresult cuCtxSynchronize(void);
CUresult cuMemAddressReserve(CUdeviceptr *p, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags);
CUresult cuMemAddressFree(CUdeviceptr p, size_t size);
CUresult cuMemCreate(CUmemGenericAllocationHandle *h, size_t size, const CUmemAllocationProp *prop, unsigned long long flags);
CUresult cuMemRelease(CUmemGenericAllocationHandle h);
CUresult cuMemMap(CUdeviceptr p, size_t size, size_t offset, CUmemGenericAllocationHandle h, unsigned long long flags);
CUresult cuMemUnmap(CUdeviceptr p, size_t size);
CUresult cuMemSetAccess(CUdeviceptr p, size_t size, const CUmemAccessDesc *desc, size_t n);
CUresult cuMemExportToShareableHandle(void *fd, CUmemGenericAllocationHandle h, CUmemAllocationHandleType type, unsigned long long flags);
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *h, void *fd, CUmemAllocationHandleType type);
CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle h);
CUresult cuMemAlloc(CUdeviceptr *p, size_t size);
CUresult cuMemFree(CUdeviceptr p);
CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t n);
CUresult cuMemsetD8(CUdeviceptr p, unsigned char value, size_t n);
CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t n);

CUresult cuCtxCreate(CUcontext *ctx, CUctxCreateParams *params, unsigned flags, CUdevice device);
CUresult cuCtxDestroy(CUcontext ctx);
CUresult cuCtxPopCurrent(CUcontext *ctx);
CUresult cuStreamCreate(CUstream *stream, unsigned flags);
CUresult cuStreamDestroy(CUstream stream);
CUresult cuStreamQuery(CUstream stream);
CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr p, uint32_t value, unsigned flags);
CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr p, uint32_t value, unsigned flags);
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn f, void *data);
CUresult cuMemsetD32Async(CUdeviceptr p, unsigned value, size_t n, CUstream stream);
CUresult cuMemGetAllocationGranularity(size_t *size, const CUmemAllocationProp *prop, int option);

CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr p, uint64_t value, unsigned flags);
CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr p, uint64_t value, unsigned flags);
CUresult cuStreamBatchMemOp(CUstream stream, unsigned count, CUstreamBatchMemOpParams *ops, unsigned flags);
CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t n, CUstream stream);
CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
			CUstream stream, void **params, void **extra);
CUresult cuMemHostRegister(void *p, size_t n, unsigned flags);
CUresult cuMemHostUnregister(void *p);
CUresult cuMemHostGetDevicePointer(CUdeviceptr *at, void *p, unsigned flags);
CUresult cuMemAllocHost(void **p, size_t n);
CUresult cuMemFreeHost(void *p);
