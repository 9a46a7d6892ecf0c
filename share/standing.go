package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/broker"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// A Standing is an offer of descriptors ([Server.OfferFiles]), which lasts until Close.
// The caller owns it. It is safe for concurrent use. The zero Standing is a closed one.
type Standing struct {
	offering *offering
	close    sync.Once
	err      error // Close's
}

// OfferFiles offers memory of which this process has only the descriptors. It needs no
// driver, so a process can keep memory for others without a GPU. memory describes it as
// [vmm.Buffer.Export] did in the process that exported it, and files are its descriptors,
// one per chunk, in order. This side cannot check that they fit the description: a
// consumer's driver does when the consumer attaches. Work on the memory must be done before,
// because OfferFiles cannot wait for it.
//
// OfferFiles takes the name from the offer that has it, as [Server.Replace] does, and
// returns at once. Without an error the Standing owns files. [WithLeases],
// [WithIdleTimeout] and [WithGrace] are invalid here.
//
// Errors: [ErrNameTaken] for the name of a prepared offer; [ErrClosed]; [ErrInUse]
// ([WithFence]); an error for a description that no consumer would take, or an invalid
// option.
func (s *Server) OfferFiles(name string, memory vmm.Descriptor, files []*os.File, access cu.Access, opts ...OfferOption) (*Standing, error) {
	o, err := s.newOffering(name, filesSource{memory, files}, access, append(slices.Clip(opts), replacing, standing))
	if err != nil {
		return nil, err
	}
	if err = o.awaitEarlier(nil); err == nil {
		err = o.putUp(context.Background())
	}
	if err != nil {
		return nil, join(err, o.end(err))
	}
	o.loan.end = func() { sock.DropFiles(files) } // until here they were the caller's
	return &Standing{offering: o}, nil
}

// standing makes the options be checked for an offer that lasts until Close.
func standing(o *offerOptions) { o.stands = true }

// Leases returns the leases that have not ended, in the order of their numbers, even after
// another offer has taken the name.
func (s *Standing) Leases() []*Lease {
	if s == nil || s.offering == nil {
		return nil
	}
	s.offering.server.mu.Lock()
	defer s.offering.server.mu.Unlock()
	return s.offering.leases()
}

// Replaced returns a channel that is closed when another offer has taken the name, or
// [Standing.Supersede] has taken it away. The leases go on until Close.
func (s *Standing) Replaced() <-chan struct{} {
	if s == nil || s.offering == nil {
		return closed
	}
	return s.offering.replaced
}

// Supersede tells the consumers that memory of that generation is offered in the place of this,
// under another name ([Attachment.Superseded]). From one instant on nobody gets this memory by
// asking for its name; the leases go on until Close. An offer of [Server.OfferResumed] goes on,
// and tells each consumer that resumes.
func (s *Standing) Supersede(generation uint64) {
	if s != nil && s.offering != nil {
		s.offering.server.bring(broker.Supersede{Offer: s.offering.id, By: generation}, nil)
	}
}

// Close ends the offer and closes the descriptors. Attached consumers are told
// ([ErrRevoked]) and disconnected; they keep what they have mapped. Close waits for the
// leases to end, so a function of [OnEvent] must not call it. It may be called again and on
// nil, and after the Close of its server. The only error is a [*FenceError] ([WithFence]).
func (s *Standing) Close() error {
	if s == nil || s.offering == nil {
		return nil
	}
	s.close.Do(func() { s.err = s.offering.end(ErrRevoked) })
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

// errStanding refuses the options of offers that end by themselves.
var errStanding = errors.New("share: WithLeases, WithIdleTimeout and WithGrace end an offer, and that of OfferFiles lasts until Close")
