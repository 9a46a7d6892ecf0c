package keeper

import (
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
func (ps *processes) join(next *state.State, p *sock.Process) (state.ID, error) {
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
	ctx, cancel := ps.server.step()
	defer cancel()
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

// fence notes that a process has died. Its descriptor may have been given up before, or
// never have been named: of a process that booked nothing.
func (s *Server) fence(id state.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.state.Clone()
	if !next.Fence(id) {
		s.processes.forget([]state.ID{id})
		s.drop(uint64(id))
		return
	}
	s.note(s.commit(next))
}

// recover watches the processes that a keeper before this one knew, and takes the leases
// that ended with it for lost. It runs with mu held, before anybody is served.
func (s *Server) recover() error {
	next := s.state.Clone()
	next.Holds(func(id state.HoldID, _ string, _ state.Holder) { s.missed = append(s.missed, id) })
	for _, id := range s.missed {
		if err := next.Lose(id); err != nil {
			return err
		}
	}
	if err := s.commit(next); err != nil {
		return err
	}
	for _, id := range s.state.Pidfds() {
		if err := s.watchAgain(id); err != nil {
			s.log("process %d of the manifest cannot be watched: %v", id, err)
		}
	}
	return nil
}

func (s *Server) watchAgain(id state.ID) error {
	files, err := s.vault.fetch(uint64(id))
	if err != nil {
		return err
	}
	p, err := sock.ProcessOf(files[0])
	if err = errors.Join(err, sock.CloseFiles(files)); err != nil {
		return err
	}
	s.processes.watch(id, p)
	return nil
}

// giveUpMissed has next forget those who had a lease before a restart, and have neither
// come back nor died in the time that they had. What they have mapped they keep.
func (s *Server) giveUpMissed(next *state.State, now time.Time) (changed bool) {
	if len(s.missed) == 0 || now.Before(s.since.Add(s.opts.Grace)) {
		return false
	}
	lost := map[state.HoldID]bool{}
	next.Holds(func(id state.HoldID, _ string, h state.Holder) { lost[id] = h.Lost })
	for _, id := range s.missed {
		if lost[id] && next.Release(id) == nil {
			changed = true
		}
	}
	s.missed = nil
	return changed
}

// holders brings leases of readers into the state, a moment after they began, and many at
// once: nobody who attaches waits for that. Each commit takes along what is pending, so
// that no version is dropped of which somebody has just taken a lease.
type holders struct {
	server *Server

	mu      sync.Mutex
	pending map[*holder]bool
	wake    chan struct{}
}

// A holder is a reader's lease.
type holder struct {
	offer *offer
	lease *share.Lease
	since time.Time
	id    state.HoldID // in the state, or 0; under the server's mu
}

func newHolders(s *Server) *holders {
	return &holders{server: s, pending: map[*holder]bool{}, wake: make(chan struct{}, 1)}
}

// flushPause is how long changes wait for others.
const flushPause = 10 * time.Millisecond

// began notes a lease, and its end when that comes.
func (h *holders) began(o *offer, l *share.Lease) {
	at("lease")
	e := &holder{offer: o, lease: l, since: time.Now()}
	h.note(e)
	h.server.work.Go(func() {
		select {
		case <-l.Done():
		case <-h.server.ctx.Done():
			return
		}
		h.note(e)
		h.server.release(o)
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
		h.flush()
	}
}

// flush commits what is pending, if anything is.
func (h *holders) flush() {
	h.server.mu.Lock()
	defer h.server.mu.Unlock()
	h.mu.Lock()
	idle := len(h.pending) == 0
	h.mu.Unlock()
	if !idle {
		h.server.note(h.server.commit(h.server.state.Clone()))
	}
}

// into has next know what is pending, and returns that with the ids that it has in next.
// It runs with the server's mu held.
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

// update returns a lease's id in next, 0 if next does not know it. A lease that the state does
// not take, which is one of a process that may have no more of them, goes on unknown.
func (h *holders) update(next *state.State, e *holder) state.HoldID {
	over := false
	select {
	case <-e.lease.Done():
		over = true
	default:
	}
	switch {
	case over && e.id != 0:
		h.server.note(letGo(next, e))
		return 0
	case !over && e.id == 0:
		id, err := h.server.hold(next, e)
		h.server.note(err)
		return id
	case over && e.lease.Err() == nil: // it came and went meanwhile
		comesBack(next, e.offer.name, e.holder())
	}
	return e.id
}

// keep notes what a commit has made of what was pending; or has it be tried again, if the
// commit has failed. It runs with the server's mu held.
func (h *holders) keep(ids map[*holder]state.HoldID, err error) {
	for e, id := range ids {
		if err != nil {
			h.note(e)
		} else {
			e.id = id
		}
	}
}

// hold has next know a lease. It runs with mu held.
func (s *Server) hold(next *state.State, e *holder) (state.HoldID, error) {
	h := e.holder()
	p, err := e.lease.Process()
	if err == nil {
		h.Pidfd, err = s.processes.join(next, p)
	}
	if err != nil && !errors.Is(err, sock.ErrNoProcess) {
		return 0, err
	}
	comesBack(next, e.offer.name, h)
	return next.Hold(e.offer.name, h)
}

// holder is the lease as the state knows it, but for the descriptor of its process.
func (e *holder) holder() state.Holder {
	peer := e.lease.Peer()
	return state.Holder{
		Who:     state.Who{UID: peer.UID, GID: peer.GID, PID: peer.PID},
		Version: e.offer.version, Part: e.offer.part.Index, Access: e.lease.Access(), Since: e.since,
	}
}

// comesBack forgets a lease that the process had lost, for it has another, or had. The pid
// of a process that is not fenced is no other's.
func comesBack(next *state.State, name string, h state.Holder) {
	var lost []state.HoldID
	next.Holds(func(id state.HoldID, of string, was state.Holder) {
		same := was.Pidfd != 0 && was.Pidfd == h.Pidfd || was.Who == h.Who && h.PID != 0
		if was.Lost && same && of == name && was.Version == h.Version && was.Part == h.Part {
			lost = append(lost, id)
		}
	})
	for _, id := range lost {
		_ = next.Release(id)
	}
}

// letGo has next forget a lease: at once if its holder has said goodbye, or was refused
// before it had the memory, and else when its process has died.
func letGo(next *state.State, e *holder) error {
	var lost *share.LostError
	if reason := e.lease.Err(); errors.As(reason, &lost) || errors.Is(reason, share.ErrRevoked) && e.lease.Access() == share.ReadWrite {
		return next.Lose(e.id)
	}
	return next.Release(e.id)
}
