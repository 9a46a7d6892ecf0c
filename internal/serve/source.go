package serve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/wire"
)

// A Source is memory that can be offered: a buffer, legacy memory or descriptors.
type Source interface {
	Lend(o *Offering) (Loan, error)        // keeps the memory until the loan's end
	Synchronize(ctx context.Context) error // waits for work on it
	Process() wire.ProcessFlags            // what is said of the process
	Identity() any                         // equal for memory that may have grown meanwhile; nil is equal to none
	Vouch() error                          // fails if it is not what was lent any more
}

// A Loan is an offering's hold on its memory.
type Loan struct {
	Memory gpumem.Descriptor
	Handle *wire.LegacyHandle // or nil, where there are
	Files  []*os.File         // one per chunk, the buffer's
	End    func()
}

// filesSource is memory that this process holds by its descriptors alone.
type filesSource struct {
	memory gpumem.Descriptor
	files  []*os.File
}

func (f filesSource) Lend(*Offering) (Loan, error) {
	if len(f.files) != f.memory.Chunks || slices.Contains(f.files, nil) {
		return Loan{}, fmt.Errorf("share: %d descriptors for memory of %d chunks: want one for each", len(f.files), f.memory.Chunks)
	}
	if err := f.memory.Plausible(); err != nil {
		return Loan{}, fmt.Errorf("share: no consumer would take this memory: %w", err)
	}
	if f.memory.Generation == 0 {
		return Loan{}, errors.New("share: memory of generation 0: every buffer has one that is larger")
	}
	return Loan{Memory: f.memory, Files: f.files, End: func() {}}, nil
}

func (filesSource) Synchronize(context.Context) error { return nil }
func (filesSource) Process() wire.ProcessFlags        { return 0 } // without a driver there is no work
func (filesSource) Identity() any                     { return nil }
func (filesSource) Vouch() error                      { return nil }
