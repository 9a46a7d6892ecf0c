package serve

import (
	"context"
	"os"
	"time"

	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// SetFiles gives an offer of [Files] other descriptors of the same memory: its bytes are elsewhere now. They are the
// offer's, and those that it had are closed. Without descriptors (nil) consumers that need none can resume, and others
// are refused as busy. The offer's leases go on. A caller that takes the descriptors away has seen to it
// (Options.Allow) that no consumer is about to get them.
func (o *Offering) SetFiles(files []*os.File) {
	s := o.server
	s.mu.Lock()
	before := o.loan.Files
	if IsClosed(o.over) {
		before = files
	} else {
		o.loan.Files, o.loan.End = files, func() { sock.DropFiles(files) }
		o.records = o.parcels(o.Record)
	}
	s.mu.Unlock()
	sock.DropFiles(before)
}

// errAbsent is told to consumers of an offer that has no descriptors.
var errAbsent = wire.Refuse{Code: wire.RefusedBusy, Text: "its memory was taken elsewhere just now, to be brought back when somebody wants it: attach again"}

// isAbsent reports whether the offer's descriptors are missing. It runs with the server's mu held.
func (o *Offering) isAbsent() bool { return o.loan.Handle == nil && len(o.loan.Files) == 0 }

// described returns the offer's record as the application is asked about it. Its member Resume is not 0 if the consumer
// gets no descriptors: it has the memory.
func (o *Offering) described(want wire.Attach) wire.Offer {
	r := o.Record
	if want.Resume != 0 || want.Reattach == 0 && want.After >= r.Memory.Generation {
		r.Resume = r.Memory.Generation
	}
	return r
}

// reassurePause is how often a consumer hears that it is to wait, while the application decides.
const reassurePause = time.Second

// reassure tells the consumer every while that this side is at work, until stop is called.
func (x *session) reassure() (stop func()) {
	ctx, cancel := context.WithCancel(x.ctx)
	timer := time.AfterFunc(reassurePause, func() {
		tick := time.NewTicker(reassurePause)
		defer tick.Stop()
		for ctx.Err() == nil {
			_ = x.transport.Conn.TrySend(wire.Encode(wire.Progress{Capabilities: takes}))
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	})
	return func() {
		cancel()
		timer.Stop()
	}
}
