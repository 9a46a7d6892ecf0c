package safetensors

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/vmm"
)

// Write writes the tensors of buf to f, as one file of the format that replaces
// what f has. The caller opens f for writing and keeps it; if Write fails, the
// content of f is of no use. Tensors with larger elements come first, so that all
// are aligned; otherwise the order is that of the buffer. Write does not wait for
// the disk.
//
// Errors: those of [Table.Check] and, for a table of a larger buffer,
// [ErrFormat], which leave f as it is; those of [vmm.Buffer.Store].
func (t Table) Write(ctx context.Context, f *os.File, buf *vmm.Buffer, o vmm.TransferOptions) error {
	if buf.Ptr() == 0 {
		return cu.ErrClosed
	}
	head, segments, err := t.Layout(buf.Size())
	if err != nil {
		return err
	}
	for i := range segments {
		segments[i].File = f
	}
	if err := f.Truncate(0); err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	if _, err := f.WriteAt(head, 0); err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	return buf.Store(ctx, segments, o)
}

// Layout returns how the file begins that [Table.Write] makes of a buffer of size bytes, and
// what follows in it, in that order: segments that have no File yet.
func (t Table) Layout(size uint64) (head []byte, segments []vmm.FileRange, err error) {
	if err := t.Check(); err != nil {
		return nil, nil, err
	}
	if size < t.Size {
		return nil, nil, fmt.Errorf("%w: the table is for a buffer of %d bytes; this one has %d", ErrFormat, t.Size, size)
	}
	tensors := slices.Clone(t.Tensors)
	slices.SortStableFunc(tensors, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(dtypes[b.DType], dtypes[a.DType]), byOffset(a, b))
	})
	head, err = encodeHeader(tensors, t.Metadata)
	if err != nil {
		return nil, nil, err
	}
	at := uint64(len(head))
	for _, x := range tensors {
		if x.Bytes > 0 {
			segments = append(segments, vmm.FileRange{At: at, Offset: x.Offset, Size: x.Bytes})
		}
		at += x.Bytes
	}
	return head, segments, nil
}

// encodeHeader writes the header of tensors that follow each other. Its length is a
// multiple of eight.
func encodeHeader(tensors []Tensor, metadata map[string]string) ([]byte, error) {
	b := bytes.NewBuffer(make([]byte, prefix))
	b.WriteByte('{')
	if len(metadata) > 0 {
		writeJSON(b, metadataName)
		b.WriteByte(':')
		writeJSON(b, metadata)
	}
	at := uint64(0)
	for _, x := range tensors {
		if b.Len() > prefix+1 {
			b.WriteByte(',')
		}
		writeJSON(b, x.Name)
		b.WriteByte(':')
		writeJSON(b, struct {
			DType   string    `json:"dtype"`
			Shape   []uint64  `json:"shape"`
			Offsets [2]uint64 `json:"data_offsets"`
		}{x.DType, append([]uint64{}, x.Shape...), [2]uint64{at, at + x.Bytes}})
		at += x.Bytes
	}
	b.WriteByte('}')
	for b.Len()%8 != 0 {
		b.WriteByte(' ')
	}
	n := b.Len() - prefix
	if n > headerMost {
		return nil, fmt.Errorf("%w: a header of %d bytes", ErrFormat, n)
	}
	binary.LittleEndian.PutUint64(b.Bytes(), uint64(n))
	return b.Bytes(), nil
}

// writeJSON writes strings, numbers and structs of them, which always have JSON.
func writeJSON(b *bytes.Buffer, v any) {
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v)
	b.Truncate(b.Len() - 1) // Encode ends the line
}
