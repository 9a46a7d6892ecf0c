package serve

import (
	"fmt"
	"math"
	"time"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/broker"
	"github.com/gpufd/gpufd/internal/wire"
)

// takes are the capabilities of this side, which its first record to a consumer names.
const takes = wire.TakesDetach

// Detached reports whether the consumer has unmapped the memory, and keeps its lease.
func (l *Lease) Detached() bool { return !l.isZero() && l.detached.Load() }

// mayDetach reports whether the consumer may say that it has detached.
func (l *Lease) mayDetach() bool {
	return l.mapped && l.event.Access == gpumem.ReadOnly && l.offering.Record.CursorSize == 0
}

// detach notes that the consumer has unmapped the memory, and keeps its lease for so many milliseconds; 0 is no bound.
func (x *session) detach(l *Lease, keep uint64) {
	x.server.bring(broker.Detach{Session: x.id}, x)
	l.detached.Store(true)
	l.tell(Detached, nil)
	x.keepFor(l, keep)
	x.rearm()
}

// keepFor bounds the time that the lease goes on, in place of an earlier bound.
func (x *session) keepFor(l *Lease, keep uint64) {
	x.server.mu.Lock()
	defer x.server.mu.Unlock()
	if x.keep != nil {
		x.keep.Stop()
	}
	if x.keep = nil; keep == 0 {
		return
	}
	bound := time.Duration(min(keep, uint64(math.MaxInt64/time.Millisecond))) * time.Millisecond
	x.keep = time.AfterFunc(bound, func() {
		l.Revoke(fmt.Sprintf("it was detached for longer than the %g s that it asked for", bound.Seconds()))
	})
}
