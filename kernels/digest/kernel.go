package digest

import (
	"context"
	_ "embed" // the PTX
	"errors"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/kernels/internal/run"
)

// PTX is the kernel digest, for [cu.Context.LoadModule]. Its parameters are src, an address that is aligned
// to 16; bytes and first, u64; and result: it adds the sums of the bytes at src, which begin with the word at
// index first, to the two u64 at result.
//
//go:embed digest.ptx
var PTX string

// A Kernel computes digests of device memory in a context. The caller owns it; the context's Close ends it.
// It is safe for concurrent use. It keeps a few bytes of device memory for its results. Memory at address 0,
// which was closed, is [cu.ErrClosed]. The caller keeps memory open until the work is done.
type Kernel struct{ run *run.Set }

// ErrAlignment says that an address is not aligned to 16. Nothing reached the driver.
var ErrAlignment = run.ErrAlignment

// Load loads the kernel into ctx. Errors are those of [cu.Context.LoadModule].
func Load(ctx *cu.Context) (*Kernel, error) {
	k, err := run.Load(ctx, run.Module{Name: "digest", PTX: PTX, Kernels: []string{"digest"}})
	if err != nil {
		return nil, err
	}
	return &Kernel{k}, nil
}

// Close unloads the kernel. Finish its work before: otherwise Close may wait for it in the driver, without end.
// A second Close does nothing.
func (k *Kernel) Close() error { return k.set().Close() }

// set returns nil for a Kernel that was never loaded.
func (k *Kernel) set() *run.Set {
	if k == nil {
		return nil
	}
	return k.run
}

// Digest returns the digest of bytes bytes at src, which is aligned to 16. It
// waits until that is computed or ctx ends. [Of] computes the same on the
// host. So does Digest on the software driver, with a copy: a kernel takes far
// longer there.
func (k *Kernel) Digest(ctx context.Context, s *cu.Stream, src cu.DevicePtr, bytes uint64) (Digest, error) {
	var d Digester
	err := k.AddTo(ctx, s, &d, Part{src, 0, bytes})
	if err != nil {
		return Digest{}, err
	}
	return d.Digest(), nil
}

// A Part is a part of data, in device memory.
type Part struct {
	Ptr    cu.DevicePtr // aligned to 16
	Offset uint64       // where in the data it begins, a multiple of 8
	Bytes  uint64       // a multiple of 8, unless the data ends with it
}

// AddTo adds p to d, as [Kernel.Digest] computes it. If it fails, d is as before.
func (k *Kernel) AddTo(ctx context.Context, s *cu.Stream, d *Digester, p Part) error {
	if err := plain.ContextErr(ctx); err != nil {
		return err
	}
	if err := errors.Join(k.set().Takes(p.Bytes, 16, p.Ptr), d.takes(p.Offset), k.set().Usable()); err != nil {
		return err
	}
	if k.run.Context().Device().Driver().Kind() == cu.CUDA {
		return k.onDevice(ctx, s, d, p)
	}
	return k.onHost(ctx, s, d, p)
}

// onDevice lets the kernel compute the sums.
func (k *Kernel) onDevice(ctx context.Context, s *cu.Stream, d *Digester, p Part) error {
	if p.Bytes == 0 {
		d.addSums(0, 0, p.Offset)
		return nil
	}
	a, err := k.run.Answer()
	if err != nil {
		return err
	}
	err = a.Ask(ctx, s, [2]uint32{}, func() error {
		return k.run.Launch(s, "digest", run.Quads(p.Bytes), p.Ptr, p.Bytes, p.Offset/8, a.Mem)
	})
	if err != nil {
		return err
	}
	d.addSums(a.Words[0], a.Words[1], p.Offset+p.Bytes)
	k.run.GiveBack(a)
	return nil
}

// pieceSize is how many bytes are copied to the host at a time, a multiple of 8.
const pieceSize = 4 << 20

// onHost copies the memory to the host, after earlier work of s, and computes
// the sums.
func (k *Kernel) onHost(ctx context.Context, s *cu.Stream, d *Digester, p Part) error {
	var part Digester
	piece := make([]byte, min(p.Bytes, pieceSize))
	for at := uint64(0); ; at += pieceSize {
		piece = piece[:min(p.Bytes-at, pieceSize)]
		if err := s.Synchronize(ctx); err != nil {
			return err
		}
		if err := run.Read(ctx, s, piece, p.Ptr.Add(at)); err != nil {
			return err
		}
		part.sum((p.Offset+at)/8, piece)
		if p.Bytes-at <= pieceSize {
			break
		}
	}
	d.addSums(part.a, part.b, part.bytes)
	return nil
}
