package kernels

import (
	"context"

	"github.com/gpufd/gpufd/cu"
)

// Answers is how many answers there are, and how many of them nobody uses.
func (k *Set) Answers() (all, free int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.all), len(k.free)
}

// KernelDigestPart is DigestPart by the kernel, on the software driver too.
func (k *Set) KernelDigestPart(ctx context.Context, s *cu.Stream, d *Digester, p Part) error {
	return k.digestThere(ctx, s, d, p)
}

// DigestOfSums is the digest of bytes bytes with these sums.
func DigestOfSums(a, b, bytes uint64) Digest {
	d := Digester{a: a, b: b, bytes: bytes}
	return d.Digest()
}
