package ring

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/pattern"
)

// A mismatch is what is wrong with a chunk.
type mismatch struct {
	Offset uint64 `json:"offset"` // of the first wrong byte
	Want   byte   `json:"want"`
	Got    byte   `json:"got"`
	Bytes  uint64 `json:"bytes"` // that are wrong
}

// Error names the first wrong byte and how many are wrong.
func (m *mismatch) Error() string {
	all := "no other is wrong"
	if m.Bytes > 1 {
		all = fmt.Sprintf("%d bytes are wrong", m.Bytes)
	}
	return fmt.Sprintf("its chunk is wrong: at offset %d, want 0x%02x, got 0x%02x; %s", m.Offset, m.Want, m.Got, all)
}

// look counts the wrong bytes among those at an offset of the chunk.
func (m *mismatch) look(b []byte, offset uint64) {
	right := uint64(bytes.Count(b, []byte{m.Want}))
	if m.Bytes == 0 && right < uint64(len(b)) {
		for i, got := range b {
			if got != m.Want {
				m.Offset, m.Got = offset+uint64(i), got
				break
			}
		}
	}
	m.Bytes += uint64(len(b)) - right
}

// checkOnHost copies size bytes at src to the host, a piece at a time, and checks that all
// have the wanted value. It calls progress after each piece. The error is a [*mismatch]
// if they differ.
func checkOnHost(ctx context.Context, s *cu.Stream, src cu.DevicePtr, size uint64, want byte, progress func() error) error {
	m := &mismatch{Want: want}
	err := pattern.Stream(ctx, size,
		func(offset uint64, b []byte) error {
			err := cu.CopyToHostAsync(s, b, src.Add(offset))
			return errors.Join(err, s.Synchronize(context.WithoutCancel(ctx))) // the copy is done: b is memory of Go
		},
		func(offset uint64, b []byte) error {
			m.look(b, offset)
			return progress()
		})
	if err == nil && m.Bytes > 0 {
		return m
	}
	return err
}
