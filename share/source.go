package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/wire"
)

// A source is memory that can be offered: a buffer, legacy memory or descriptors.
type source interface {
	lend(o *offering) (loan, error)        // keeps the memory until the loan's end
	synchronize(ctx context.Context) error // waits for work on it
	process() wire.ProcessFlags            // what is said of the process
	identity() any                         // equal for memory that may have grown meanwhile; nil is equal to none
	vouch() error                          // fails if it is not what was lent any more
}

// A loan is an offering's hold on its memory.
type loan struct {
	memory gpumem.Descriptor
	handle *wire.LegacyHandle // or nil, where there are
	files  []*os.File         // one per chunk, the buffer's
	end    func()
}

// filesSource is memory that this process holds by its descriptors alone.
type filesSource struct {
	memory gpumem.Descriptor
	files  []*os.File
}

func (f filesSource) lend(*offering) (loan, error) {
	if len(f.files) != f.memory.Chunks || slices.Contains(f.files, nil) {
		return loan{}, fmt.Errorf("share: %d descriptors for memory of %d chunks: want one for each", len(f.files), f.memory.Chunks)
	}
	if err := f.memory.Plausible(); err != nil {
		return loan{}, fmt.Errorf("share: no consumer would take this memory: %w", err)
	}
	if f.memory.Generation == 0 {
		return loan{}, errors.New("share: memory of generation 0: every buffer has one that is larger")
	}
	return loan{memory: f.memory, files: f.files, end: func() {}}, nil
}

func (filesSource) synchronize(context.Context) error { return nil }
func (filesSource) process() wire.ProcessFlags        { return 0 } // without a driver there is no work
func (filesSource) identity() any                     { return nil }
func (filesSource) vouch() error                      { return nil }
