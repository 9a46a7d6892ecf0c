// What the kernels of the corpus have in common. Each is
//   extern "C" __global__ void NAME(const unsigned char *in, unsigned char *out, unsigned long long n)
// with n bytes of either; in is random, out begins as zeros.
#pragma once

#define KERNEL(name) extern "C" __global__ void name(const unsigned char *in, unsigned char *out, unsigned long long n)

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

static __device__ inline u32 self() { return blockIdx.x * blockDim.x + threadIdx.x; }
static __device__ inline u32 all() { return gridDim.x * blockDim.x; }

template <typename T> static __device__ inline T load(const u8 *in, u64 i) { return reinterpret_cast<const T *>(in)[i]; }
template <typename T> static __device__ inline void store(u8 *out, u64 i, T v) { reinterpret_cast<T *>(out)[i] = v; }

// A number between -128 and 128, of sixteen bits.
static __device__ inline float small(u32 v) { return (float)(int)(short)v / 256.0f; }
