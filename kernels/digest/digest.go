package digest

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"

	"github.com/gpufd/gpufd/kernels/internal/run"
)

// Algorithm names the algorithm of [Digest], to be stored or sent with one.
const Algorithm = "gpufd-d1"

// ErrPart says that a part of data begins at an offset that is not a multiple of
// 8 bytes.
var ErrPart = errors.New("digest: bad part")

// A Digest detects accidental changes of data. Any change within one word of
// eight bytes changes it. Other changes leave it the same about once in 2¹²⁷
// times; if only two words change, n words apart, up to about n times as often.
// It does not protect from people: anyone can make other data with the same
// digest. The package documentation says how it is computed.
type Digest [16]byte

// String returns the digest as 32 hexadecimal digits.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// Of computes the digest of b on the host.
func Of(b []byte) Digest {
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
	first := run.Mix(d.a + (d.bytes+1)*golden)
	binary.LittleEndian.PutUint64(sum[:], first)
	binary.LittleEndian.PutUint64(sum[8:], run.Mix(d.b^first))
	return sum
}

// golden makes the keys of words.
const golden = 0x9e3779b97f4a7c15

// sum adds the sums of part, which begins with the word at index first.
func (d *Digester) sum(first uint64, part []byte) {
	end, a, b := 8*first+uint64(len(part)), uint64(0), uint64(0)
	key := (first + 1) * golden
	for ; len(part) >= 8; part = part[8:] {
		x := run.Mix(binary.LittleEndian.Uint64(part) ^ key)
		a += x
		b += x * (key | 1)
		key += golden
	}
	if len(part) > 0 {
		var last [8]byte
		copy(last[:], part)
		x := run.Mix(binary.LittleEndian.Uint64(last[:]) ^ key)
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
