package digest

import (
	"context"

	"github.com/gpufd/gpufd/cu"
)

// AddToByKernel is AddTo by the kernel, on the software driver too.
func (k *Kernel) AddToByKernel(ctx context.Context, s *cu.Stream, d *Digester, p Part) error {
	return k.onDevice(ctx, s, d, p)
}

// OfSums is the digest of bytes bytes with these sums.
func OfSums(a, b, bytes uint64) Digest {
	d := Digester{a: a, b: b, bytes: bytes}
	return d.Digest()
}
