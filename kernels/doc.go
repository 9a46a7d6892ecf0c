// Package kernels holds the GPU code of this module, as PTX. scripts/kernels.sh compiles it
// from the CUDA C beside it; only that of digest was written by hand. Drivers of
// CUDA 11.4 and newer compile it for devices of compute capability 7.5 and newer. The
// software driver runs it, too.
//
// Package digest computes digests of memory with one of them. [Builtins] lists all kernels with their parameters. You can load them with
// [cu.Context.LoadModule] and launch them yourself, or let a [Set] do that for memory of
// any size. All sizes and indices have 64 bits.
//
// The pattern is the one of the demo's programs: the 32-bit integer at index i is
// (2i + 1337) ^ 0xDEADBEEF ^ salt, in wrapping arithmetic, little-endian. If the size of the
// data is not a multiple of 4, the data ends with the low bytes of the next integer.
//
// All drivers run the kernels with the same results, bit for bit. The tests compare each
// driver's results with the hashes in testdata/outputs.txt.
package kernels
