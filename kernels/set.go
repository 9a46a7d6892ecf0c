package kernels

import (
	"context"
	"math"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/pattern"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/kernels/internal/run"
)

// A Set is all kernels of this package, loaded into a context. The caller owns
// it; the context's Close ends it. It is safe for concurrent use.
//
// Its methods take a stream of the context. Those with Async in their names
// return before their work is done. The others wait for their result, and need a
// few bytes of device memory, which the Set keeps for the next call. Work on 0
// bytes does nothing; on memory at address 0, which was closed, it is
// [cu.ErrClosed]. The caller keeps memory open until the work is done. If
// [Set.Check] or [Set.Checksum] returns an error, such as that of a context that
// ended, the work may still be running.
type Set struct{ run *run.Set }

// ErrAlignment says that an address is not a multiple of what a kernel needs.
// Nothing reached the driver.
var ErrAlignment = run.ErrAlignment

// Load loads the kernels into ctx. Errors are those of
// [cu.Context.LoadModule].
func Load(ctx *cu.Context) (*Set, error) {
	var modules []run.Module
	for _, b := range Builtins() {
		m := run.Module{Name: b.Name, PTX: b.PTX}
		for _, k := range b.Kernels {
			m.Kernels = append(m.Kernels, k.Name)
		}
		modules = append(modules, m)
	}
	k, err := run.Load(ctx, modules...)
	if err != nil {
		return nil, err
	}
	return &Set{k}, nil
}

// Close unloads the kernels. Finish their work before: otherwise Close may wait
// for it in the driver, without end, and does not keep their memory. A second
// Close does nothing.
func (k *Set) Close() error { return k.set().Close() }

// set returns nil for a Set that was never loaded.
func (k *Set) set() *run.Set {
	if k == nil {
		return nil
	}
	return k.run
}

// FillAsync queues a write of bytes bytes of the pattern to dst on s. dst is
// aligned to 16 and begins with the integer at index first.
func (k *Set) FillAsync(s *cu.Stream, dst cu.DevicePtr, bytes, first uint64, salt uint32) error {
	if err := k.set().Takes(bytes, 16, dst); err != nil {
		return err
	}
	return k.run.Launch(s, "pattern_fill", run.Quads(bytes), dst, bytes, first, salt)
}

// A Mismatch is what [Set.Check] found wrong. The zero Mismatch means that all is
// right.
type Mismatch struct {
	Wrong     uint64 // how many integers
	Index     uint64 // the first of them
	Want, Got uint32 // at that index; of a partial integer only its bytes
}

// Check compares bytes bytes at src, which is aligned to 16 and begins with the
// integer at index first, with the pattern. It waits until that is done or ctx
// ends.
func (k *Set) Check(ctx context.Context, s *cu.Stream, src cu.DevicePtr, bytes, first uint64, salt uint32) (Mismatch, error) {
	if err := plain.ContextErr(ctx); err != nil {
		return Mismatch{}, err
	}
	if err := k.set().Takes(bytes, 16, src); err != nil || bytes == 0 {
		return Mismatch{}, err
	}
	a, err := k.run.Answer()
	if err != nil {
		return Mismatch{}, err
	}
	err = a.Ask(ctx, s, [2]uint32{0, math.MaxUint32}, func() error {
		return k.run.Launch(s, "pattern_check", run.Quads(bytes), src, bytes, first, salt, a.Mem)
	})
	if err != nil {
		return Mismatch{}, err
	}
	m := Mismatch{Wrong: a.Words[0]}
	if m.Wrong > 0 {
		m.Index = a.Words[1]
		err = k.lookAt(ctx, a, &m, src, bytes, first, salt)
	}
	k.run.GiveBack(a)
	return m, err
}

// lookAt fills in what the integer at m.Index is and should be.
func (k *Set) lookAt(ctx context.Context, a *run.Answer, m *Mismatch, src cu.DevicePtr, bytes, first uint64, salt uint32) error {
	at := (m.Index - first) * pattern.Size
	n := min(pattern.Size, bytes-at)
	var b [pattern.Size]byte
	if err := run.Read(ctx, a.Stream, b[:n], src.Add(at)); err != nil {
		return err
	}
	for i := range n {
		m.Got |= uint32(b[i]) << (8 * i)
	}
	m.Want = pattern.At(m.Index, salt) & (math.MaxUint32 >> (32 - 8*n))
	return nil
}

// Checksum returns the checksum of bytes bytes at src, which is aligned to 8. It
// waits until that is computed or ctx ends. The checksum is the sum, modulo 2⁶⁴,
// of mix(word ^ mix(i+1)) over the 64-bit words, little-endian, the last one
// filled up with zeros; mix is the finaliser of splitmix64. The function
// [Checksum] computes the same on the host.
func (k *Set) Checksum(ctx context.Context, s *cu.Stream, src cu.DevicePtr, bytes uint64) (uint64, error) {
	if err := plain.ContextErr(ctx); err != nil {
		return 0, err
	}
	if err := k.set().Takes(bytes, 8, src); err != nil || bytes == 0 {
		return 0, err
	}
	a, err := k.run.Answer()
	if err != nil {
		return 0, err
	}
	err = a.Ask(ctx, s, [2]uint32{}, func() error {
		return k.run.Launch(s, "checksum", (bytes-1)/8+1, src, bytes, a.Mem)
	})
	if err != nil {
		return 0, err
	}
	sum := a.Words[0]
	k.run.GiveBack(a)
	return sum, nil
}

// FillBytesAsync queues on s a write of value to each of bytes bytes at dst.
func (k *Set) FillBytesAsync(s *cu.Stream, dst cu.DevicePtr, bytes uint64, value uint8) error {
	if err := k.set().Takes(bytes, 1, dst); err != nil {
		return err
	}
	return k.run.Launch(s, "fill_bytes", bytes, dst, bytes, value)
}

// CopyAsync queues a copy of bytes bytes from src to dst on s. The two do not
// overlap and are aligned to 16.
func (k *Set) CopyAsync(s *cu.Stream, dst, src cu.DevicePtr, bytes uint64) error {
	if err := k.set().Takes(bytes, 16, dst, src); err != nil {
		return err
	}
	return k.run.Launch(s, "copy_bytes", run.Quads(bytes), dst, src, bytes)
}

// VectorAddAsync queues on s the additions of n float32 at a and b, with the sums
// at c: the kernel's own parameters, in its order.
func (k *Set) VectorAddAsync(s *cu.Stream, a, b, c cu.DevicePtr, n uint64) error {
	if err := k.set().Takes(n, 4, a, b, c); err != nil {
		return err
	}
	return k.run.Launch(s, "vector_add", n, a, b, c, n)
}

// SaxpyAsync queues on s the addition of a times x to y, for n float32 at each,
// rounded once.
func (k *Set) SaxpyAsync(s *cu.Stream, a float32, x, y cu.DevicePtr, n uint64) error {
	if err := k.set().Takes(n, 4, x, y); err != nil {
		return err
	}
	return k.run.Launch(s, "saxpy", n, a, x, y, n)
}
