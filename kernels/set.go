package kernels

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/pattern"
	"github.com/gpufd/gpufd/internal/wait"
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
type Set struct {
	ctx     *cu.Context
	modules []*cu.Module
	kernels map[string]kernel

	mu     sync.Mutex
	free   []*answer
	all    []*answer
	closed bool
}

// A kernel is a function, and the number of its blocks that fill the device.
type kernel struct {
	f      *cu.Function
	blocks uint64
}

// threads is the number of threads in a block. All kernels work with any number.
const threads = 256

// ErrAlignment says that an address is not a multiple of what a kernel needs.
// Nothing reached the driver.
var ErrAlignment = errors.New("kernels: the address is not aligned")

// Load loads the kernels into ctx. Errors are those of
// [cu.Context.LoadModule].
func Load(ctx *cu.Context) (*Set, error) {
	if ctx == nil {
		return nil, cu.ErrClosed
	}
	k := &Set{ctx: ctx, kernels: map[string]kernel{}}
	processors, err := ctx.Device().Attribute(cu.AttributeMultiprocessorCount)
	if err != nil {
		return nil, err
	}
	for _, b := range Builtins() {
		if err := k.load(b, processors); err != nil {
			return nil, errors.Join(fmt.Errorf("kernels: %s: %w", b.Name, err), k.Close())
		}
	}
	return k, nil
}

func (k *Set) load(b Builtin, processors int) error {
	m, err := k.ctx.LoadModule([]byte(b.PTX))
	if err != nil {
		return err
	}
	k.modules = append(k.modules, m)
	for _, builtin := range b.Kernels {
		f, err := m.Function(builtin.Name)
		if err != nil {
			return err
		}
		per, err := f.MaxActiveBlocks(threads, 0)
		if err != nil {
			return err
		}
		k.kernels[builtin.Name] = kernel{f, uint64(max(per, 1)) * uint64(processors)}
	}
	return nil
}

// Close unloads the kernels. Finish their work before: otherwise Close may wait
// for it in the driver, without end, and does not keep their memory. A second
// Close does nothing.
func (k *Set) Close() error {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	var errs []error
	for _, a := range k.all {
		errs = append(errs, a.close())
	}
	for _, m := range k.modules {
		errs = append(errs, m.Close())
	}
	k.all, k.free, k.modules = nil, nil, nil
	return errors.Join(errs...)
}

// launch runs a kernel with a thread for each of n pieces of work, or as many
// threads as the device runs at once: then each takes several pieces.
func (k *Set) launch(s *cu.Stream, name string, n uint64, args ...any) error {
	if n == 0 {
		return nil
	}
	f := k.kernels[name]
	blocks := min((n-1)/threads+1, f.blocks, math.MaxInt32)
	return f.f.Launch(s, cu.LaunchConfig{Grid: cu.Dim3{X: uint32(blocks)}, Block: cu.Dim3{X: threads}}, args...)
}

// takes refuses a set that was never loaded, addresses that are not multiples of
// to, and, if there is work, the address 0. The driver would launch at that, and
// lose the context.
func (k *Set) takes(n uint64, to cu.DevicePtr, ps ...cu.DevicePtr) error {
	if k == nil || k.ctx == nil {
		return cu.ErrClosed
	}
	for _, p := range ps {
		if p == 0 && n > 0 {
			return fmt.Errorf("kernels: there is no memory at address 0, the Ptr of closed memory and of 0 bytes: %w", cu.ErrClosed)
		}
		if p%to != 0 {
			return fmt.Errorf("%w: %v is not a multiple of %d", ErrAlignment, p, to)
		}
	}
	return nil
}

// quads returns the number of 16-byte pieces; the last may be short.
func quads(bytes uint64) uint64 { return bytes/16 + (bytes%16+15)/16 }

// FillAsync queues a write of bytes bytes of the pattern to dst on s. dst is
// aligned to 16 and begins with the integer at index first.
func (k *Set) FillAsync(s *cu.Stream, dst cu.DevicePtr, bytes, first uint64, salt uint32) error {
	if err := k.takes(bytes, 16, dst); err != nil {
		return err
	}
	return k.launch(s, "pattern_fill", quads(bytes), dst, bytes, first, salt)
}

// A Mismatch is what [Set.Check] found wrong: the number of wrong integers, the
// index of the first, and what that is and should be; of a partial integer only
// its bytes. The zero Mismatch means that all is right.
type Mismatch = pattern.Mismatch

// Check compares bytes bytes at src, which is aligned to 16 and begins with the
// integer at index first, with the pattern. It waits until that is done or ctx
// ends.
func (k *Set) Check(ctx context.Context, s *cu.Stream, src cu.DevicePtr, bytes, first uint64, salt uint32) (Mismatch, error) {
	if err := wait.Err(ctx); err != nil {
		return Mismatch{}, err
	}
	if err := k.takes(bytes, 16, src); err != nil || bytes == 0 {
		return Mismatch{}, err
	}
	a, err := k.answer()
	if err != nil {
		return Mismatch{}, err
	}
	err = a.ask(ctx, s, [2]uint32{0, math.MaxUint32}, func() error {
		return k.launch(s, "pattern_check", quads(bytes), src, bytes, first, salt, a.mem)
	})
	if err != nil {
		return Mismatch{}, err
	}
	m := Mismatch{Wrong: a.words[0]}
	if m.Wrong > 0 {
		m.Index = a.words[1]
		err = k.lookAt(ctx, a, &m, src, bytes, first, salt)
	}
	k.giveBack(a)
	return m, err
}

// lookAt fills in what the integer at m.Index is and should be.
func (k *Set) lookAt(ctx context.Context, a *answer, m *Mismatch, src cu.DevicePtr, bytes, first uint64, salt uint32) error {
	at := (m.Index - first) * pattern.Size
	n := min(pattern.Size, bytes-at)
	var b [pattern.Size]byte
	if err := read(ctx, a.stream, b[:n], src.Add(at)); err != nil {
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
	if err := wait.Err(ctx); err != nil {
		return 0, err
	}
	if err := k.takes(bytes, 8, src); err != nil || bytes == 0 {
		return 0, err
	}
	a, err := k.answer()
	if err != nil {
		return 0, err
	}
	err = a.ask(ctx, s, [2]uint32{}, func() error {
		return k.launch(s, "checksum", (bytes-1)/8+1, src, bytes, a.mem)
	})
	if err != nil {
		return 0, err
	}
	sum := a.words[0]
	k.giveBack(a)
	return sum, nil
}

// FillBytesAsync queues on s a write of value to each of bytes bytes at dst.
func (k *Set) FillBytesAsync(s *cu.Stream, dst cu.DevicePtr, bytes uint64, value uint8) error {
	if err := k.takes(bytes, 1, dst); err != nil {
		return err
	}
	return k.launch(s, "fill_bytes", bytes, dst, bytes, value)
}

// CopyAsync queues a copy of bytes bytes from src to dst on s. The two do not
// overlap and are aligned to 16.
func (k *Set) CopyAsync(s *cu.Stream, dst, src cu.DevicePtr, bytes uint64) error {
	if err := k.takes(bytes, 16, dst, src); err != nil {
		return err
	}
	return k.launch(s, "copy_bytes", quads(bytes), dst, src, bytes)
}

// VectorAddAsync queues on s the additions of n float32 at a and b, with the sums
// at dst.
func (k *Set) VectorAddAsync(s *cu.Stream, dst, a, b cu.DevicePtr, n uint64) error {
	if err := k.takes(n, 4, dst, a, b); err != nil {
		return err
	}
	return k.launch(s, "vector_add", n, a, b, dst, n)
}

// SaxpyAsync queues on s the addition of a times x to y, for n float32 at each,
// rounded once.
func (k *Set) SaxpyAsync(s *cu.Stream, a float32, x, y cu.DevicePtr, n uint64) error {
	if err := k.takes(n, 4, x, y); err != nil {
		return err
	}
	return k.launch(s, "saxpy", n, a, x, y, n)
}
