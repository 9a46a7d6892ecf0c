package kernels

import "encoding/binary"

// Checksum computes on the host what [Set.Checksum] computes in device memory.
func Checksum(b []byte) (sum uint64) {
	i := uint64(0)
	for ; len(b) >= 8; b = b[8:] {
		i++
		sum += mix(binary.LittleEndian.Uint64(b) ^ mix(i))
	}
	if len(b) > 0 {
		var last [8]byte
		copy(last[:], b)
		sum += mix(binary.LittleEndian.Uint64(last[:]) ^ mix(i+1))
	}
	return sum
}

// mix is the finaliser of splitmix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
