package weights

import (
	"crypto/sha256"
	"fmt"
)

// maxKnown bounds the tables that a reader knows, by their texts together.
const maxKnown = 64 << 20

// tables are those that a reader has read, by digest: step after step they are the same.
type tables struct {
	known map[[sha256.Size]byte]*table
	bytes uint64
}

// of returns the table of a frame, or nil if that has no tensors. It calls read for one that is not known.
func (k *tables) of(b *bucket, read func() ([]byte, error)) (*table, error) {
	if b.tensors == 0 {
		return nil, nil
	}
	if t := k.known[b.digest]; t != nil {
		return t, nil
	}
	text, err := read()
	if err != nil {
		return nil, err
	}
	if sha256.Sum256(text) != b.digest {
		return nil, fmt.Errorf("%w: the table of bucket %d of update %d has another digest than its frame says", ErrFormat, b.index, b.number)
	}
	t, err := parseTable(text)
	if err != nil {
		return nil, err
	}
	k.keep(b.digest, t, uint64(len(text)))
	return t, nil
}

// keep notes a table. If there are too many, those before are forgotten: the frames to come bring them again.
func (k *tables) keep(digest [sha256.Size]byte, t *table, size uint64) {
	if k.known == nil || k.bytes+size > maxKnown {
		k.known, k.bytes = map[[sha256.Size]byte]*table{}, 0
	}
	k.known[digest] = t
	k.bytes += size
}
