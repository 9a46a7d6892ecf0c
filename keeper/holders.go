package keeper

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
)

// processes are those that may write what is kept, or read it, each known by an id under
// which the store has its descriptor. They are waited for until they die.
type processes struct {
	server *Server
	known  map[string]state.ID // by sock.Process.ID; under the server's mu
	names  map[state.ID]string // the way back
}

func newProcesses(s *Server) *processes {
	return &processes{server: s, known: map[string]state.ID{}, names: map[state.ID]string{}}
}

// join returns the id of a process, which is in the store from then on, and owns p. It
// runs with the server's mu held; the id is for next.
func (ps *processes) join(ctx context.Context, next *state.State, p *sock.Process) (state.ID, error) {
	if id, ok := ps.known[p.ID()]; ok && p.ID() != "" {
		return id, p.Close()
	}
	f, err := p.File()
	if errors.Is(err, sock.ErrNoProcess) { // it has died
		return 0, p.Close()
	}
	if err != nil {
		return 0, errors.Join(err, p.Close())
	}
	defer f.Close()
	id := next.NewID()
	if err := ps.server.vault.hold(ctx, uint64(id), oneFile(f)); err != nil {
		return 0, errors.Join(err, p.Close())
	}
	ps.watch(id, p)
	return id, nil
}

// watch waits for the end of a process, and owns p. It runs with the server's mu held.
func (ps *processes) watch(id state.ID, p *sock.Process) {
	if p.ID() != "" {
		ps.known[p.ID()], ps.names[id] = id, p.ID()
	}
	ps.server.work.Go(func() {
		defer p.Close()
		if p.Wait(ps.server.ctx) == nil {
			ps.server.fence(id)
		}
	})
}

// forget is told which ids the state names no more.
func (ps *processes) forget(dropped []state.ID) {
	for _, id := range dropped {
		if name, ok := ps.names[id]; ok {
			delete(ps.known, name)
			delete(ps.names, id)
		}
	}
}

// fence notes that a process has died. Its descriptor may have been given up before.
func (s *Server) fence(id state.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.state.Clone()
	if !next.Fence(id) {
		return
	}
	next.Retire(time.Now())
	if err := s.commit(s.ctx, next); err != nil && s.ctx.Err() == nil {
		s.log("%v", err)
	}
}

// recover watches the processes that a keeper before this one knew, and takes the leases
// that ended with it for lost. It runs with mu held, before anybody is served.
func (s *Server) recover(ctx context.Context) error {
	next := s.state.Clone()
	var held []state.HoldID
	next.Holds(func(id state.HoldID, _ string, _ state.Holder) { held = append(held, id) })
	for _, id := range held {
		if err := next.Lose(id); err != nil {
			return err
		}
	}
	if err := s.commit(ctx, next); err != nil {
		return err
	}
	for _, id := range s.state.Pidfds() {
		files, err := s.vault.fetch(uint64(id))
		if err != nil {
			return err
		}
		p, err := sock.ProcessOf(files[0])
		if err = errors.Join(err, sock.CloseFiles(files)); err != nil {
			return err
		}
		s.processes.watch(id, p)
	}
	return nil
}

// holders brings leases of readers into the state, a moment after they began, and many at
// once: nobody who attaches waits for that.
type holders struct {
	server *Server

	mu      sync.Mutex
	pending []*holder
	wake    chan struct{}
}

// A holder is a reader's lease.
type holder struct {
	offer *offer
	lease *share.Lease
	since time.Time
	id    state.HoldID // in the state, or 0; under the server's mu
	over  bool         // the lease has ended
	err   error        // why
}

func newHolders(s *Server) *holders { return &holders{server: s, wake: make(chan struct{}, 1)} }

// flushPause is how long changes wait for others.
const flushPause = 10 * time.Millisecond

// began notes a lease, and its end when that comes.
func (h *holders) began(o *offer, l *share.Lease) {
	e := &holder{offer: o, lease: l, since: time.Now()}
	h.note(e)
	h.server.work.Go(func() {
		select {
		case <-l.Done():
		case <-h.server.ctx.Done():
			return
		}
		h.mu.Lock()
		e.over, e.err = true, l.Err()
		h.mu.Unlock()
		h.note(e)
		h.server.release(o)
	})
}

func (h *holders) note(e *holder) {
	h.mu.Lock()
	h.pending = append(h.pending, e)
	h.mu.Unlock()
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// run brings what was noted into the state, until the server ends.
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
		h.mu.Lock()
		all := h.pending
		h.pending = nil
		h.mu.Unlock()
		if err := h.flush(ctx, all); err != nil && ctx.Err() == nil {
			h.server.log("noting readers: %v", err)
		}
	}
}

// flush brings all into the state at once.
func (h *holders) flush(ctx context.Context, all []*holder) error {
	s := h.server
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.state.Clone()
	var errs []error
	for _, e := range all {
		h.mu.Lock()
		over, reason := e.over, e.err
		h.mu.Unlock()
		switch {
		case !over && e.id == 0:
			errs = append(errs, s.hold(ctx, next, e))
		case over && e.id != 0:
			errs = append(errs, letGo(next, e, reason))
			e.id = 0
		}
	}
	next.Retire(time.Now())
	return errors.Join(append(errs, s.commit(ctx, next))...)
}

// hold has next know a lease. It runs with mu held.
func (s *Server) hold(ctx context.Context, next *state.State, e *holder) error {
	peer := e.lease.Peer()
	h := state.Holder{
		Who:     state.Who{UID: peer.UID, GID: peer.GID, PID: peer.PID},
		Version: e.offer.version, Part: e.offer.part.Index, Access: e.lease.Access(), Since: e.since,
	}
	p, err := e.lease.Process()
	if err == nil {
		h.Pidfd, err = s.processes.join(ctx, next, p)
	}
	if err != nil && !errors.Is(err, sock.ErrNoProcess) {
		return err
	}
	s.comesBack(next, e.offer.name, h)
	e.id, err = next.Hold(e.offer.name, h)
	return err
}

// comesBack forgets a lease that the process had lost, for it has another.
func (s *Server) comesBack(next *state.State, name string, h state.Holder) {
	var lost []state.HoldID
	next.Holds(func(id state.HoldID, of string, was state.Holder) {
		if was.Lost && was.Pidfd != 0 && was.Pidfd == h.Pidfd && of == name && was.Version == h.Version && was.Part == h.Part {
			lost = append(lost, id)
		}
	})
	for _, id := range lost {
		_ = next.Release(id)
	}
}

// letGo has next forget a lease: at once if its holder has said goodbye, or was refused
// before it had the memory, and else when its process has died.
func letGo(next *state.State, e *holder, reason error) error {
	var lost *share.LostError
	if errors.As(reason, &lost) || errors.Is(reason, share.ErrRevoked) && e.lease.Access() == share.ReadWrite {
		return next.Lose(e.id)
	}
	return next.Release(e.id)
}
