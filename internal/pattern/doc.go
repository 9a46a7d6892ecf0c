// Package pattern is the data that the demo's producer writes and its consumer
// checks: 32-bit little-endian integers
//
//	data[i] = ((i*2 + 1337) ^ 0xDEADBEEF) ^ salt
//
// in wrapping arithmetic, for i from 0. A buffer whose size is not a multiple of
// four ends with the low bytes of one more integer.
package pattern
