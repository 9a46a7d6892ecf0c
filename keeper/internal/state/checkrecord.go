package state

import (
	"errors"
	"fmt"

	"github.com/gpufd/gpufd/gpumem"
)

// check checks what the methods rely on, of a record that was read.
func (r *record) check() error {
	if r.empty() || r.Current != nil && r.Current.N != r.Last {
		return fmt.Errorf("version %d is the last, and %d is current", r.Last, r.number())
	}
	for _, v := range r.versions() {
		if len(v.Parts) == 0 || v.Digest != digestOf(v.Parts) {
			return fmt.Errorf("version %d has no parts, or not their digest", v.N)
		}
	}
	ids := map[string]bool{}
	for _, t := range r.Pending {
		if ids[t.ID] {
			return fmt.Errorf("transaction %q comes twice", t.ID)
		}
		ids[t.ID] = t.ID != ""
		if err := t.check(); err != nil {
			return fmt.Errorf("transaction %q: %w", t.ID, err)
		}
	}
	return nil
}

func (t *transaction) check() error {
	switch {
	case t.Parts < 1 || t.Parts > MaxParts || len(t.Delivered) >= t.Parts:
		return fmt.Errorf("%d parts of %d have come", len(t.Delivered), t.Parts)
	case len(t.Delivered)+len(t.Bookings) == 0:
		return errors.New("nothing is left of it")
	case t.ID == "" && t.Parts != 1, t.ID != "" && t.Deadline.IsZero():
		return errors.New("it is no transaction, or has no deadline")
	}
	taken := map[int]bool{}
	for i := range t.Delivered {
		taken[t.Delivered[i].Index] = true
	}
	for i := range t.Bookings {
		taken[t.Bookings[i].Index] = true
	}
	if len(taken) != len(t.Delivered)+len(t.Bookings) {
		return errors.New("a part comes twice")
	}
	for i := range taken {
		if i >= t.Parts {
			return fmt.Errorf("part %d of %d", i, t.Parts)
		}
	}
	return nil
}

func (b *booked) check() error {
	if b.Index < 0 || b.Index >= MaxParts || b.Bytes == 0 || b.Bytes > MaxPart || b.Kind != gpumem.CUDA && b.Kind != gpumem.Soft {
		return fmt.Errorf("part %d of %d bytes in memory of driver %d", b.Index, b.Bytes, b.Kind)
	}
	return nil
}
