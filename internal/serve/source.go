package serve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// A Source is memory that can be offered: a buffer, legacy memory or descriptors.
type Source interface {
	Lend(o *Offering) (Loan, error)        // keeps the memory until the loan's end
	Synchronize(ctx context.Context) error // waits for work on it
	Process() wire.ProcessFlags            // what is said of the process
	Identity() any                         // equal for memory that may have grown meanwhile; nil is equal to none
	Vouch() error                          // fails if it is not what was lent any more
}

// ErrNoSource says that there is no memory to offer.
var ErrNoSource = errors.New("share: no memory to offer (nil); an offer whose memory comes later is pending")

// A Loan is an offering's hold on its memory.
type Loan struct {
	Memory gpumem.Descriptor
	Handle *gpumem.LegacyHandle // or nil, where there are
	Files  []*os.File           // one per chunk, the buffer's
	End    func()
	Abort  func() // in the place of End for an offer that could not be made; nil is End
}

// Files is memory that this process holds by its descriptors alone. They are the offer's once it is made.
type Files struct {
	Memory gpumem.Descriptor
	Files  []*os.File
	Absent bool // there are none, until Offering.SetFiles
}

// Lend checks that the descriptors are the memory's, as far as that can be seen.
func (f Files) Lend(*Offering) (Loan, error) {
	if f.Absent != (len(f.Files) == 0) || !f.Absent && len(f.Files) != f.Memory.Chunks || slices.Contains(f.Files, nil) {
		return Loan{}, fmt.Errorf("share: %d descriptors for memory of %d chunks: want one for each", len(f.Files), f.Memory.Chunks)
	}
	if err := f.Memory.Plausible(); err != nil {
		return Loan{}, fmt.Errorf("share: no consumer would take this memory: %w", err)
	}
	if f.Memory.Generation == 0 {
		return Loan{}, errors.New("share: memory of generation 0: every buffer has one that is larger")
	}
	return Loan{Memory: f.Memory, Files: f.Files, End: func() { sock.DropFiles(f.Files) }, Abort: func() {}}, nil
}

// Synchronize does nothing: without a driver there is no work.
func (Files) Synchronize(context.Context) error { return nil }

// Process returns 0.
func (Files) Process() wire.ProcessFlags { return 0 }

// Identity returns nil.
func (Files) Identity() any { return nil }

// Vouch returns nil.
func (Files) Vouch() error { return nil }
