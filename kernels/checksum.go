package kernels

import (
	"encoding/binary"

	"github.com/gpufd/gpufd/kernels/internal/run"
)

// Checksum computes on the host what [Set.Checksum] computes in device memory.
func Checksum(b []byte) (sum uint64) {
	i := uint64(0)
	for ; len(b) >= 8; b = b[8:] {
		i++
		sum += run.Mix(binary.LittleEndian.Uint64(b) ^ run.Mix(i))
	}
	if len(b) > 0 {
		var last [8]byte
		copy(last[:], b)
		sum += run.Mix(binary.LittleEndian.Uint64(last[:]) ^ run.Mix(i+1))
	}
	return sum
}
