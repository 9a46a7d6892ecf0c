// The first kernels that anybody writes.
typedef unsigned long long u64;

static __device__ __forceinline__ u64 thread(void)
{
	return (u64)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ __forceinline__ u64 threads(void)
{
	return (u64)gridDim.x * blockDim.x;
}

// c = a + b, for n numbers.
extern "C" __global__ void vector_add(const float *a, const float *b, float *c, u64 n)
{
	for (u64 i = thread(); i < n; i += threads())
		c[i] = a[i] + b[i];
}

// y = a x + y, for n numbers, rounded once.
extern "C" __global__ void saxpy(float a, const float *x, float *y, u64 n)
{
	for (u64 i = thread(); i < n; i += threads())
		y[i] = __fmaf_rn(a, x[i], y[i]);
}
