// Package kernels is the GPU code that comes with this module: PTX, made of the
// CUDA C beside it by scripts/kernels.sh, that drivers from CUDA 11.4 on compile
// for devices of compute capability 7.5 and newer, and that the software driver
// runs.
//
// [Builtins] lists all kernels with their parameters, to be loaded with
// [cu.Context.LoadModule] and launched by hand. A [Set] does that for memory of
// any size. Sizes and indices have 64 bits throughout.
//
// The pattern is that of the demo's programs: the 32-bit integer at index i is
// (2i + 1337) ^ 0xDEADBEEF ^ salt, in wrapping arithmetic, little-endian. Data
// whose size is no multiple of 4 ends with the low bytes of one more.
//
// What a kernel leaves in memory is the same to the bit on all drivers:
// testdata/outputs.txt has hashes of it, which each driver's has to be.
package kernels
