// Package kernels is the GPU code that comes with this module: PTX, made of the
// CUDA C beside it by scripts/kernels.sh, that drivers from CUDA 11.4 on compile
// for devices of compute capability 7.5 and newer, and that the software driver
// runs. The PTX of digest.cu was written by hand.
//
// [Builtins] lists all kernels with their parameters, to be loaded with
// [cu.Context.LoadModule] and launched by hand. A [Set] does that for memory of
// any size. Sizes and indices have 64 bits throughout.
//
// The pattern is that of the demo's programs: the 32-bit integer at index i is
// (2i + 1337) ^ 0xDEADBEEF ^ salt, in wrapping arithmetic, little-endian. Data
// whose size is no multiple of 4 ends with the low bytes of one more.
//
// # The digest gpufd-d1
//
// A [Digest] is of n bytes, taken as words w[i] of 64 bits, little-endian, i counting
// from 0; zeros fill up the last. All numbers are modulo 2⁶⁴. mix is the finaliser of
// splitmix64, and g is 0x9e3779b97f4a7c15:
//
//	mix(x):  x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
//	         x = (x ^ x>>27) * 0x94d049bb133111eb
//	         x ^ x>>31
//	k[i]   = (i+1) * g
//	x[i]   = mix(w[i] ^ k[i])
//	A      = the sum of all x[i]
//	B      = the sum of all x[i] * (k[i] | 1)
//	first  = mix(A + (n+1)*g)
//	second = mix(B ^ first)
//
// The digest is first and second, eight bytes each, little-endian. The sums can be
// made of parts, in any order. testdata/digests.json has digests, and
// testdata/digests.py makes them.
//
// What a kernel leaves in memory is the same to the bit on all drivers:
// testdata/outputs.txt has hashes of it, which each driver's has to be.
package kernels
