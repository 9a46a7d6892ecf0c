package kernels

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/wait"
)

// DigestAlgorithm names the algorithm of [Digest], to be stored or sent with one.
const DigestAlgorithm = "gpufd-d1"

// ErrPart says that a part of data begins at an offset that is not a multiple of
// 8 bytes.
var ErrPart = errors.New("kernels: bad part of a digest")

// A Digest detects accidental changes of data. Any change within one word of
// eight bytes changes it. Other changes leave it the same about once in 2¹²⁷
// times; if only two words change, n words apart, up to about n times as often.
// It does not protect from people: anyone can make other data with the same
// digest. The package documentation says how it is computed.
type Digest [16]byte

// String returns the digest as 32 hexadecimal digits.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// DigestOf computes the digest of b on the host.
func DigestOf(b []byte) Digest {
	var d Digester
	d.sum(0, b)
	return d.Digest()
}

// A Digester computes the digest of data that comes in parts, in any order and
// side by side. Each part begins at a multiple of 8 bytes, and the size of all
// but the last is such a multiple. The zero Digester is ready. It is safe for
// concurrent use.
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

// Digest returns the digest of all parts that were added. The size of the data is
// where the last part ends.
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

// addSums adds the sums of a part that ends after end bytes of the data.
func (d *Digester) addSums(a, b, end uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.a, d.b, d.bytes = d.a+a, d.b+b, max(d.bytes, end)
}

// takes refuses a part with a bad offset, and all parts if d is nil.
func (d *Digester) takes(offset uint64) error {
	if d == nil {
		return fmt.Errorf("%w: the Digester is nil", ErrPart)
	}
	if offset%8 != 0 {
		return fmt.Errorf("%w: offset %d is not a multiple of 8", ErrPart, offset)
	}
	return nil
}

// Digest returns the digest of bytes bytes at src, which is aligned to 16. It
// waits until that is computed or ctx ends. [DigestOf] computes the same on the
// host. So does Digest on the software driver, with a copy: a kernel takes far
// longer there.
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
	if err := wait.Err(ctx); err != nil {
		return err
	}
	if err := errors.Join(k.takes(p.Bytes, 16, p.Ptr), d.takes(p.Offset), k.usable()); err != nil {
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

// digestThere lets the kernel compute the sums.
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

// pieceSize is how many bytes are copied to the host at a time, a multiple of 8.
const pieceSize = 4 << 20

// digestHere copies the memory to the host, after earlier work of s, and computes
// the sums.
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
