package weights

import (
	"fmt"

	"github.com/gpufd/gpufd/internal/safetensors"
)

// Metadata is what a publisher says before the first update.
type Metadata struct {
	Tensors []Meta // those of each update; nil if the publisher does not know them
	InPlace bool   // the channel has one slot, whose bytes are the weights
}

// parseMetadata reads the data of an offer.
func parseMetadata(data []byte) (m Metadata, err error) {
	if len(data) == 0 {
		return m, nil
	}
	if err := m.parse(data); err != nil {
		return Metadata{}, fmt.Errorf("%w: the publisher's metadata: %w", ErrFormat, err)
	}
	return m, nil
}

func (m *Metadata) parse(data []byte) error {
	all, err := whole(data)
	if err != nil {
		return err
	}
	if all.has("in_place") {
		if err := all.into("in_place", "true or false", &m.InPlace); err != nil {
			return err
		}
	}
	if !all.has("tensors") {
		return nil
	}
	list, err := all.list("tensors")
	if err != nil {
		return err
	}
	names := make(map[string]struct{}, len(list))
	m.Tensors = make([]Meta, len(list))
	for i, raw := range list {
		x, err := object(raw)
		if err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
		if m.Tensors[i], _, err = x.meta(); err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
		names[m.Tensors[i].Name] = struct{}{}
		if len(names) <= i {
			return fmt.Errorf("tensor %s comes twice", safetensors.Quote(m.Tensors[i].Name))
		}
	}
	return nil
}
