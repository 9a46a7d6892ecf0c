package server

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/sock"
)

// holders records leases of readers in the state, shortly after they begin and many at once, so
// that attaching does not wait for it. Each commit includes the pending leases, so that no version
// is dropped just after a reader has taken a lease of it.
type holders struct {
	server *Server

	mu      sync.Mutex
	pending map[*holder]bool // to be recorded in the state, or removed from it
	unknown map[*holder]bool // not in the state yet: they count against quotas
	live    map[leaseKey]*holder
	wake    chan struct{}
}

// A holder is a reader that was admitted, and has a lease now or soon.
type holder struct {
	offer *offer
	is    state.Holder
	lease *serve.Lease // nil before the reader has one
	told  bool         // its reader has said that it has detached; guarded by the holders' mu
	id    state.HoldID // in the state, or 0; written by a change with the server's mu held
}

// A leaseKey is a lease as events name it.
type leaseKey struct {
	offer  *offer
	number int
}

func newHolders(s *Server) *holders {
	return &holders{server: s, pending: map[*holder]bool{}, unknown: map[*holder]bool{}, live: map[leaseKey]*holder{}, wake: make(chan struct{}, 1)}
}

// noteAdmitted counts a reader until its lease begins, or for patience.
func (h *holders) noteAdmitted(o *offer, is state.Holder) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unknown[&holder{offer: o, is: is}] = true
}

// soon returns the leases that are not in the state yet.
func (h *holders) soon() (all []state.Soon) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for e := range h.unknown {
		if e.isOver() {
			delete(h.unknown, e)
			continue
		}
		is := e.is
		is.Detached = e.lease.Detached()
		all = append(all, state.Soon{Name: e.offer.name, Holder: is})
	}
	return all
}

// arrived returns the holder of a reader that has got its lease, and whether it was admitted to that very offer.
func (h *holders) arrived(o *offer, l *serve.Lease) (e *holder, admitted bool) {
	peer := l.Peer()
	is := state.Holder{
		Who:     state.Who{UID: peer.UID, GID: peer.GID, PID: peer.PID},
		Version: o.version, Part: o.part.Index, Access: l.Access(), Since: time.Now(),
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var counted *holder
	for was := range h.unknown {
		if was.lease == nil && was.offer.as == o.as && was.is.Who == is.Who && !admitted {
			counted, admitted = was, was.offer == o
		}
	}
	delete(h.unknown, counted) // it counts once
	e = &holder{offer: o, is: is, lease: l}
	h.unknown[e] = true
	h.live[leaseKey{o, l.Number()}] = e
	return e, admitted
}

// detached notes that a reader has detached, the first time that it says so.
func (h *holders) detached(o *offer, lease int) {
	h.mu.Lock()
	e := h.live[leaseKey{o, lease}]
	first := e != nil && !e.told
	if first {
		e.told = true
	}
	h.mu.Unlock()
	if first {
		h.note(e)
	}
}

// has reports whether a process has a lease.
func (h *holders) has(who state.Who) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.live {
		if e.is.Who == who {
			return true
		}
	}
	return false
}

// flushPause is how long a pending lease waits for others.
const flushPause = 10 * time.Millisecond

// began records a lease, and its end when it comes.
func (h *holders) began(o *offer, l *serve.Lease) {
	testHookStep("lease")
	e, admitted := h.arrived(o, l)
	if !admitted && h.server.isReplaced(o) { // it was admitted to what has replaced that
		l.Revoke(fmt.Sprintf("version %d of %s is for processes that have had it: attach anew", o.version, o.as))
	}
	h.note(e)
	h.server.work.Go(func() {
		select {
		case <-l.Done():
		case <-h.server.ctx.Done():
			return
		}
		h.mu.Lock()
		delete(h.live, leaseKey{o, l.Number()})
		h.mu.Unlock()
		h.note(e)
	})
}

func (h *holders) note(all ...*holder) {
	h.mu.Lock()
	for _, e := range all {
		h.pending[e] = true
	}
	h.mu.Unlock()
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// run commits pending leases until the server ends.
func (h *holders) run() {
	for ctx := h.server.ctx; ; {
		select {
		case <-ctx.Done():
			return
		case <-h.wake:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(flushPause):
		}
		if h.flush() == nil {
			continue
		}
		select { // usually the store is lost, and the leases are pending again
		case <-ctx.Done():
		case <-time.After(outagePause):
		}
	}
}

// flush commits the pending leases, if there are any.
func (h *holders) flush() error {
	if err := h.server.begin(h.server.ctx); err != nil {
		return err
	}
	defer h.server.finish()
	h.mu.Lock()
	idle := len(h.pending) == 0
	h.mu.Unlock()
	if idle {
		return nil
	}
	err := h.server.commit(h.server.state.Clone())
	h.server.note(err)
	return err
}

// into records pending leases in next and returns their new ids. It is part of a change, and
// noteRecorded follows.
func (h *holders) into(next *state.State) map[*holder]state.HoldID {
	h.mu.Lock()
	all := h.pending
	h.pending = map[*holder]bool{}
	h.mu.Unlock()
	ids := map[*holder]state.HoldID{}
	for e := range all {
		ids[e] = h.update(next, e)
	}
	return ids
}

// update records a lease or its end in next, and returns its id there, or 0. The state refuses a
// lease of a process that has as many as it may. Such a lease goes on, unknown to the state.
func (h *holders) update(next *state.State, e *holder) state.HoldID {
	over := e.isOver()
	switch {
	case over && e.id != 0:
		h.server.note(letGo(next, e.id, e.lease))
		return 0
	case over && serve.IsEnded(e.lease.Err()): // before the state knew it
		if id, err := h.server.recordLease(next, e); err == nil {
			h.server.note(letGo(next, id, e.lease))
		}
		return 0
	case !over && e.id == 0:
		id, err := h.server.recordLease(next, e)
		h.server.note(err)
		return id
	case !over && e.lease.Detached():
		h.server.note(next.Detach(e.id))
	case over && e.lease.Err() == nil: // it began and ended meanwhile
		comesBack(next, e.offer.name, e.is)
	}
	return e.id
}

// noteRecorded stores the ids of leases that a commit recorded, or makes the leases pending again if the
// commit failed. It runs with the server's mu held.
func (h *holders) noteRecorded(ids map[*holder]state.HoldID, err error) {
	for e, id := range ids {
		if err != nil {
			h.note(e)
			continue
		}
		e.id = id
		h.mu.Lock()
		delete(h.unknown, e)
		h.mu.Unlock()
	}
}

// recordLease records a lease in next, even if its version was dropped after its process was admitted
// and before it had the lease. It is part of a change.
func (s *Server) recordLease(next *state.State, e *holder) (state.HoldID, error) {
	h := e.is
	h.Detached = e.lease.Detached()
	p, err := e.lease.Process()
	if err == nil {
		h.Pidfd, err = s.processes.join(next, p)
	}
	if err != nil && !errors.Is(err, sock.ErrNoProcess) {
		return 0, err
	}
	comesBack(next, e.offer.name, h)
	id, err := next.Hold(e.offer.name, h)
	if state.CodeOf(err) == state.NotFound {
		p := e.offer.part
		id, err = next.HoldGone(e.offer.name, h, state.PartOn{Part: p.Index, Device: p.Memory.Device.String(), Bytes: p.Bytes})
	}
	return id, err
}

// isOver reports whether the lease has ended, or an admitted reader has not come for one.
func (e *holder) isOver() bool {
	if e.lease == nil {
		return time.Since(e.is.Since) > patience
	}
	select {
	case <-e.lease.Done():
		return true
	default:
		return false
	}
}

// comesBack releases in next the leases of the same part that a process had lost or was told to
// give up, now that it has taken a lease again, even one that has ended since. Processes are
// compared by their pidfd or by their pid: while one is not fenced, no other process has its pid.
func comesBack(next *state.State, name string, h state.Holder) {
	var lost []state.HoldID
	next.Holds(func(id state.HoldID, of string, was state.Holder) {
		if (was.Lost || was.Revoked) && was.IsProcess(h) && of == name && was.Version == h.Version && was.Part == h.Part {
			lost = append(lost, id)
		}
	})
	for _, id := range lost {
		_ = next.Release(id)
	}
}

// letGo removes a lease from next: at once if its holder has said goodbye, or was refused before
// it had the memory, and otherwise when its process has died. A holder that was told to let go
// sends nothing any more. If it could write, its version is kept until it has died.
func letGo(next *state.State, id state.HoldID, lease *serve.Lease) error {
	var lost *sock.LostError
	switch reason := lease.Err(); {
	case errors.As(reason, &lost), errors.Is(reason, serve.ErrRestarting): // it may come back
		return next.Lose(id)
	case !serve.IsEnded(reason), lease.Released():
		return next.Release(id)
	case lease.Access() == gpumem.ReadWrite:
		return next.Lose(id)
	}
	return next.Revoke(id)
}
