package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// A Standing is an offer of descriptors ([Server.OfferFiles]), which stands until Close.
// The caller owns it. It is safe for concurrent use. The zero Standing is a closed one.
type Standing struct {
	offering *offering
	close    sync.Once
	err      error // Close's
}

// OfferFiles offers, without a driver, memory of which this process has no more than the
// descriptors: a process that keeps memory for others needs no GPU for it. memory
// describes it as whoever exported it did ([vmm.Buffer.Export]), and files are its descriptors, one
// per chunk, in their order. Nobody can tell here whether they are what memory says: a
// consumer's driver does when the consumer attaches. Work on the memory has to be done by
// then; there is nothing here to wait for it.
//
// OfferFiles takes the name from the offer that has it, as [Server.Replace] does, and
// does not wait for the end of its own. Files are the Standing's if there is no error.
// [WithLeases], [WithIdleTimeout] and [WithGrace] make no sense here.
//
// Errors: [ErrNameTaken] for a name that is prepared; [ErrClosed]; a description that no
// consumer would take; an option that makes no sense.
func (s *Server) OfferFiles(name string, memory vmm.Descriptor, files []*os.File, access cu.Access, opts ...OfferOption) (*Standing, error) {
	o, err := s.newOffering(name, filesSource{memory, files}, access, append(slices.Clip(opts), replacing, standing))
	if err != nil {
		return nil, err
	}
	if err := o.putUp(context.Background()); err != nil {
		return nil, join(err, o.giveUp(err))
	}
	o.loan.end = func() { sock.DropFiles(files) } // until here they were the caller's
	return &Standing{offering: o}, nil
}

// standing has the options checked for an offer that nobody waits for.
func standing(o *offerOptions) { o.stands = true }

// Leases lists the leases that have not ended, in the order of their numbers; also once
// another offer has the name.
func (s *Standing) Leases() []*Lease {
	if s == nil || s.offering == nil {
		return nil
	}
	s.offering.server.mu.Lock()
	defer s.offering.server.mu.Unlock()
	return slices.Clone(s.offering.live)
}

// Replaced is closed when another offer has the name. The leases go on until Close.
func (s *Standing) Replaced() <-chan struct{} {
	if s == nil || s.offering == nil {
		return closed
	}
	return s.offering.replaced
}

// Close ends the offer: consumers that are attached are told ([ErrRevoked]) and
// disconnected, and the descriptors are closed; what consumers have mapped they keep. It
// waits for the leases' end, and so must not be called by a function of [OnEvent]. It may
// be called again and on nil, and after the Close of its server. The only error is a
// [*FenceError] ([WithFence]).
func (s *Standing) Close() error {
	if s == nil || s.offering == nil {
		return nil
	}
	s.close.Do(func() {
		s.offering.remove()
		s.err = s.offering.end(ErrRevoked)
	})
	return s.err
}

// filesSource is memory that this process holds by its descriptors alone.
type filesSource struct {
	memory vmm.Descriptor
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
func (filesSource) device() *cu.Device                { return nil }
func (filesSource) vouch() error                      { return nil }

// errStanding says which options are for offers that somebody waits for.
var errStanding = errors.New("share: WithLeases, WithIdleTimeout and WithGrace are for offers that end by themselves, and that of OfferFiles stands until Close")
