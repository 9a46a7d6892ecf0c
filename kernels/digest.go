package kernels

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"

	"github.com/gpufd/gpufd/cu"
)

// DigestAlgorithm names how a [Digest] is made, for whoever stores or sends one.
const DigestAlgorithm = "gpufd-d1"

// ErrPart says that a part of data does not begin where one can: at a multiple of 8
// bytes.
var ErrPart = errors.New("kernels: bad part of a digest")

// A Digest tells data from what has become of it by accident. Any change within one
// word of eight bytes changes it. Other changes leave it the same about once in 2¹²⁷
// times, and if only two words change, n words apart, up to about n times as often. It
// is no protection from people: anyone can make other data with the same digest. The
// package documentation says how it is computed.
type Digest [16]byte

// String gives the digest as 32 hexadecimal digits.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// DigestOf is the digest of b, computed on the host.
func DigestOf(b []byte) Digest {
	var d Digester
	d.sum(0, b)
	return d.Digest()
}

// A Digester makes a digest of data that comes in parts, in any order and side by
// side. Each part begins at a multiple of 8 bytes, and all but the last have a size
// that is one. The zero Digester is ready. It is safe for concurrent use.
type Digester struct {
	mu    sync.Mutex
	a, b  uint64 // the sums
	bytes uint64 // of the data, so far
}

// Add adds part, which begins at offset bytes of the data.
func (d *Digester) Add(offset uint64, part []byte) error {
	if err := d.takes(offset); err != nil {
		return err
	}
	d.sum(offset/8, part)
	return nil
}

// Digest is that of all parts that were added. Data has as many bytes as the part
// that ends last says.
func (d *Digester) Digest() (sum Digest) {
	if d == nil {
		d = &Digester{}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	first := mix(d.a + (d.bytes+1)*golden)
	binary.LittleEndian.PutUint64(sum[:], first)
	binary.LittleEndian.PutUint64(sum[8:], mix(d.b^first))
	return sum
}

// golden makes the keys of words.
const golden = 0x9e3779b97f4a7c15

// sum adds the sums of part, which begins with the word at index first.
func (d *Digester) sum(first uint64, part []byte) {
	end, a, b := 8*first+uint64(len(part)), uint64(0), uint64(0)
	key := (first + 1) * golden
	for ; len(part) >= 8; part = part[8:] {
		x := mix(binary.LittleEndian.Uint64(part) ^ key)
		a += x
		b += x * (key | 1)
		key += golden
	}
	if len(part) > 0 {
		var last [8]byte
		copy(last[:], part)
		x := mix(binary.LittleEndian.Uint64(last[:]) ^ key)
		a += x
		b += x * (key | 1)
	}
	d.addSums(a, b, end)
}

// addSums adds the sums of a part that ends at end bytes.
func (d *Digester) addSums(a, b, end uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.a, d.b, d.bytes = d.a+a, d.b+b, max(d.bytes, end)
}

// takes refuses a part that begins where none can, and all parts if d is nil.
func (d *Digester) takes(offset uint64) error {
	if d == nil {
		return fmt.Errorf("%w: there is no digester", ErrPart)
	}
	if offset%8 != 0 {
		return fmt.Errorf("%w: %d is no multiple of 8", ErrPart, offset)
	}
	return nil
}

// Digest returns the digest of bytes bytes at src, which is aligned to 16, and waits
// for it or until ctx is done. [DigestOf] computes the same on the host. So does Digest
// on the software driver, with a copy: a kernel takes far longer there.
func (k *Set) Digest(ctx context.Context, s *cu.Stream, src cu.DevicePtr, bytes uint64) (Digest, error) {
	var d Digester
	err := k.DigestPart(ctx, s, &d, Part{src, 0, bytes})
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

// DigestPart adds p to d, as [Set.Digest] computes it. If it fails, d is as before.
func (k *Set) DigestPart(ctx context.Context, s *cu.Stream, d *Digester, p Part) error {
	if err := errors.Join(aligned(16, p.Ptr), d.takes(p.Offset), k.usable()); err != nil {
		return err
	}
	if k.ctx.Device().Driver().Kind() == cu.CUDA {
		return k.digestThere(ctx, s, d, p)
	}
	return k.digestHere(ctx, s, d, p)
}

// usable refuses a set that is closed or was never loaded.
func (k *Set) usable() error {
	if k == nil || k.ctx == nil {
		return cu.ErrClosed
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return cu.ErrClosed
	}
	return nil
}

// digestThere has the kernel compute the sums.
func (k *Set) digestThere(ctx context.Context, s *cu.Stream, d *Digester, p Part) error {
	if p.Bytes == 0 {
		d.addSums(0, 0, p.Offset)
		return nil
	}
	a, err := k.answer()
	if err != nil {
		return err
	}
	err = a.ask(ctx, s, [2]uint32{}, func() error {
		return k.launch(s, "digest", quads(p.Bytes), p.Ptr, p.Bytes, p.Offset/8, a.mem)
	})
	if err != nil {
		return err
	}
	d.addSums(a.words[0], a.words[1], p.Offset+p.Bytes)
	k.giveBack(a)
	return nil
}

// pieceSize is how much is copied to the host at a time, a multiple of 8.
const pieceSize = 4 << 20

// digestHere copies the memory to the host, after what s has, and computes the sums.
func (k *Set) digestHere(ctx context.Context, s *cu.Stream, d *Digester, p Part) error {
	var part Digester
	piece := make([]byte, min(p.Bytes, pieceSize))
	for at := uint64(0); ; at += pieceSize {
		piece = piece[:min(p.Bytes-at, pieceSize)]
		if err := s.Synchronize(ctx); err != nil {
			return err
		}
		if err := read(ctx, s, piece, p.Ptr.Add(at)); err != nil {
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
