package keeper

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/sock"
)

// processes are those that may write what is kept, or read it, each known by an id under
// which the store has its descriptor. They are waited for until they die. Changes use them.
type processes struct {
	server  *Server
	known   map[string]state.ID         // by sock.Process.ID
	watched map[state.ID]watchedProcess // the way back
}

// A watchedProcess is one that is waited for, until stop.
type watchedProcess struct {
	name string
	stop context.CancelFunc
}

func newProcesses(s *Server) *processes {
	return &processes{server: s, known: map[string]state.ID{}, watched: map[state.ID]watchedProcess{}}
}

// join returns the id of a process, which is in the store from then on, and owns p. It is
// part of a change; the id is for next. The error of a process that has ended
// is [sock.ErrNoProcess].
func (ps *processes) join(next *state.State, p *sock.Process) (state.ID, error) {
	if id, ok := ps.known[p.ID()]; ok && p.ID() != "" {
		return id, p.Close()
	}
	f, err := p.File()
	if err != nil {
		return 0, errors.Join(err, p.Close())
	}
	defer f.Close()
	id := next.NewID()
	if err := ps.server.vault.hold(ps.server.store, uint64(id), oneFile(f)); err != nil {
		return 0, errors.Join(err, p.Close())
	}
	ps.watch(id, p)
	return id, nil
}

// watch waits for the end of a process, or until it is forgotten, and owns p. It is part of
// a change.
func (ps *processes) watch(id state.ID, p *sock.Process) {
	ctx, stop := context.WithCancel(ps.server.ctx)
	ps.watched[id] = watchedProcess{p.ID(), stop}
	if p.ID() != "" {
		ps.known[p.ID()] = id
	}
	ps.server.work.Go(func() {
		defer p.Close()
		defer stop()
		if p.Wait(ctx) == nil {
			ps.server.fence(id)
		}
	})
}

// forget stops watching the processes whose ids the state no longer names.
func (ps *processes) forget(dropped []state.ID) {
	for _, id := range dropped {
		w, ok := ps.watched[id]
		if !ok {
			continue
		}
		w.stop()
		delete(ps.watched, id)
		if ps.known[w.name] == id {
			delete(ps.known, w.name)
		}
	}
}

// fence notes that a process has died. Its descriptor may have been given up before, or
// never have been named: of a process that booked nothing. Where the store is lost, the
// next commit has it.
func (s *Server) fence(id state.ID) {
	if s.begin(s.ctx) != nil {
		return
	}
	defer s.finish()
	next := s.state.Clone()
	if !next.Fence(id) {
		s.processes.forget([]state.ID{id})
		s.drop(uint64(id))
		return
	}
	s.dead[id] = true
	s.note(s.commit(next))
}

// fenced counts processes that are known to be dead in a manifest. It runs with mu held.
func (s *Server) fenced() {
	for id := range s.dead {
		if since, awaited := s.fences[id]; awaited {
			s.metrics.fenced(time.Since(since))
		}
	}
	clear(s.dead)
}

// followFences notes which processes are waited for until they die: those that had a lease
// and have neither said goodbye nor come back. It runs with mu held.
func (s *Server) followFences() {
	now := map[state.ID]time.Time{}
	s.state.Holds(func(_ state.HoldID, _ string, h state.Holder) {
		if h.Pidfd == 0 || !h.Lost && !h.Revoked {
			return
		}
		since, known := s.fences[h.Pidfd]
		if !known {
			since = time.Now()
		}
		now[h.Pidfd] = since
	})
	s.fences = now
}

// recover watches the processes that a keeper before this one knew, and takes the leases
// that ended with it for lost. It is a change, before anybody is served.
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

// giveUpMissed makes next give up the versions that wait for readers of before a restart, once
// their time to come back is over. The readers keep what they have mapped, so they are shown
// until their processes have died.
func (s *Server) giveUpMissed(next *state.State, now time.Time) (changed bool) {
	if len(s.missed) == 0 || now.Before(s.since.Add(s.opts.Grace)) {
		return false
	}
	lost := map[state.HoldID]bool{}
	next.Holds(func(id state.HoldID, _ string, h state.Holder) { lost[id] = h.Lost })
	for _, id := range s.missed {
		if lost[id] && next.Revoke(id) == nil {
			changed = true
		}
	}
	if !changed {
		s.missed = nil
	}
	return changed
}

// holders brings leases of readers into the state, a moment after they began, and many at
// once: nobody who attaches waits for that. Each commit takes the pending notes along, so
// that no version is dropped just after a reader has taken a lease of it.
type holders struct {
	server *Server

	mu      sync.Mutex
	pending map[*holder]bool // that are to be brought into the state, or out of it
	unknown map[*holder]bool // that the state does not know yet: they count against quotas
	wake    chan struct{}
}

// A holder is a reader that was let in, and soon has a lease.
type holder struct {
	offer *offer
	is    state.Holder
	lease *serve.Lease // or nil; under mu of holders
	id    state.HoldID // in the state, or 0; written by the change that has the server's mu
}

func newHolders(s *Server) *holders {
	return &holders{server: s, pending: map[*holder]bool{}, unknown: map[*holder]bool{}, wake: make(chan struct{}, 1)}
}

// admit notes a reader that is let in.
func (h *holders) admit(o *offer, is state.Holder) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unknown[&holder{offer: o, is: is}] = true
}

// soon returns the leases that the state does not know yet.
func (h *holders) soon() (all []state.Soon) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for e := range h.unknown {
		if e.isOver() {
			delete(h.unknown, e)
			continue
		}
		all = append(all, state.Soon{Name: e.offer.name, Holder: e.is})
	}
	return all
}

// arrived returns the holder whose reader has its lease.
func (h *holders) arrived(o *offer, l *serve.Lease) *holder {
	peer := l.Peer()
	is := state.Holder{
		Who:     state.Who{UID: peer.UID, GID: peer.GID, PID: peer.PID},
		Version: o.version, Part: o.part.Index, Access: l.Access(), Since: time.Now(),
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for e := range h.unknown { // it counts once
		if e.lease == nil && e.offer.as == o.as && e.is.Who == is.Who {
			delete(h.unknown, e)
			break
		}
	}
	e := &holder{offer: o, is: is, lease: l}
	h.unknown[e] = true
	return e
}

// flushPause is how long changes wait for others.
const flushPause = 10 * time.Millisecond

// began notes a lease, and its end when that comes.
func (h *holders) began(o *offer, l *serve.Lease) {
	at("lease")
	e := h.arrived(o, l)
	h.note(e)
	h.server.work.Go(func() {
		select {
		case <-l.Done():
		case <-h.server.ctx.Done():
			return
		}
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
		if h.flush() == nil {
			continue
		}
		select { // the store is lost, as a rule, and what was noted is noted again
		case <-ctx.Done():
		case <-time.After(outagePause):
		}
	}
}

// flush commits what is pending, if anything is.
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

// into has next know what is pending, and returns that with the ids that it has in next.
// It is part of a change, and keep follows.
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

// update returns a lease's id in next, 0 if next does not know it. The state refuses a lease
// of a process that has as many as it may. Such a lease goes on, unknown to the state.
func (h *holders) update(next *state.State, e *holder) state.HoldID {
	over := e.isOver()
	switch {
	case over && e.id != 0:
		h.server.note(letGo(next, e.id, e.lease))
		return 0
	case over && errors.Is(e.lease.Err(), serve.ErrRevoked): // before the state knew it
		if id, err := h.server.hold(next, e); err == nil {
			h.server.note(letGo(next, id, e.lease))
		}
		return 0
	case !over && e.id == 0:
		id, err := h.server.hold(next, e)
		h.server.note(err)
		return id
	case over && e.lease.Err() == nil: // it came and went meanwhile
		comesBack(next, e.offer.name, e.is)
	}
	return e.id
}

// keep notes what a commit has made of the pending leases, or has them tried again if the
// commit has failed. It runs with the server's mu held.
func (h *holders) keep(ids map[*holder]state.HoldID, err error) {
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

// hold has next know a lease, also of a version that was dropped when its process had been
// admitted and had no lease yet. It is part of a change.
func (s *Server) hold(next *state.State, e *holder) (state.HoldID, error) {
	h := e.is
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

// isOver says whether the lease has ended, or a reader that was let in has not come for one.
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

// comesBack is called when a process has taken a lease, even one that it has ended since. It
// makes next forget those leases of the same part that the process had lost or was told to give
// up. Processes are compared by their pidfd or by their pid: while one is not fenced, no other
// process has its pid.
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

// letGo has next forget a lease: at once if its holder has said goodbye, or was refused
// before it had the memory, and else when its process has died. One that was told to let go
// says nothing any more. If it could write, its version waits for its death.
func letGo(next *state.State, id state.HoldID, lease *serve.Lease) error {
	var lost *serve.LostError
	switch reason := lease.Err(); {
	case errors.As(reason, &lost):
		return next.Lose(id)
	case !errors.Is(reason, serve.ErrRevoked), hasReleased(lease):
		return next.Release(id)
	case lease.Access() == gpumem.ReadWrite:
		return next.Lose(id)
	}
	return next.Revoke(id)
}

// hasReleased says whether the reader of a lease that has ended has said goodbye, or has died. It
// may have said goodbye just before it was told to let go.
func hasReleased(lease *serve.Lease) bool { return lease.AwaitFence(noWait, serve.Released) == nil }

// noWait is done.
var noWait = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()
