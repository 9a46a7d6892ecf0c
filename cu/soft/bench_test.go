package soft

import "testing"

// A large copy should run at the speed of memory.
func BenchmarkCopyToDevice(b *testing.B) {
	const n = 32 * MiB
	c := inContext(b, 0)
	p, _ := buffer(b, n, 0)
	host := pattern(n, 1)
	b.SetBytes(n)
	for b.Loop() {
		ok(b, c.CuMemcpyHtoD_v2(p, at(host), n))
	}
}

// A small synchronous copy is a round trip through the stream's goroutine.
func BenchmarkSmallCopy(b *testing.B) {
	c := inContext(b, 0)
	p, _ := buffer(b, 2*MiB, 0)
	host := make([]byte, 64)
	for b.Loop() {
		ok(b, c.CuMemcpyHtoD_v2(p, at(host), 64))
	}
}

// The cost of a chunk from nothing to its first use and back.
func BenchmarkFirstUse(b *testing.B) {
	const n = 32 * MiB
	c := inContext(b, 0)
	host := pattern(n, 1)
	b.SetBytes(n)
	for b.Loop() {
		p, free := looseBuffer(b, n)
		ok(b, c.CuMemcpyHtoD_v2(p, at(host), n))
		free()
	}
}
