// Package digest computes the digest gpufd-d1, on the host and of device memory: same digest, same data,
// but for people who mean harm.
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
package digest
