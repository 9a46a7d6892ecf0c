// Package kernels has the GPU code of this module, as PTX. scripts/kernels.sh compiles it
// from the CUDA C beside it; only the PTX of digest.cu was written by hand. Drivers of
// CUDA 11.4 and newer compile it for devices of compute capability 7.5 and newer. The
// software driver runs it, too.
//
// [Builtins] lists all kernels with their parameters. You can load them with
// [cu.Context.LoadModule] and launch them yourself, or let a [Set] do that for memory of
// any size. All sizes and indices have 64 bits.
//
// The pattern is the one of the demo's programs: the 32-bit integer at index i is
// (2i + 1337) ^ 0xDEADBEEF ^ salt, in wrapping arithmetic, little-endian. If the size of the
// data is not a multiple of 4, the data ends with the low bytes of the next integer.
//
// # The digest gpufd-d1
//
// A [Digest] reads n bytes as little-endian words w[i] of 64 bits, with i from 0, and fills
// the last word up with zeros. All arithmetic is modulo 2⁶⁴. mix is the finaliser of
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
// The digest is first and second, eight bytes each, little-endian. The sums of parts of the
// data can be added in any order. testdata/digests.json has examples, which
// testdata/digests.py computes.
//
// All drivers run the kernels with the same results, bit for bit. The tests compare each
// driver's results with the hashes in testdata/outputs.txt.
package kernels
