package server

import (
	"context"
	"errors"
	"time"

	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/sock"
)

// processes records the processes that may write or read what is kept, each by the id under
// which the store has its pidfd. The keeper waits for their end. Only changes use it.
type processes struct {
	server  *Server
	known   map[string]state.ID         // by sock.Process.ID
	watched map[state.ID]watchedProcess // the same by id
}

// A watchedProcess is waited for until stop is called.
type watchedProcess struct {
	name string
	stop context.CancelFunc
}

func newProcesses(s *Server) *processes {
	return &processes{server: s, known: map[string]state.ID{}, watched: map[state.ID]watchedProcess{}}
}

// join puts a process into the store, if it is not there, and returns its id, which is for next.
// It owns p, and is part of a change. If the process has ended the error is
// [sock.ErrNoProcess].
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

// fence records that a process has died. Its descriptor may have been dropped before, or never
// named, if the process booked nothing. If the store is lost, the next commit records the death.
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

// fenced counts the dead processes that the manifest records from now on. It runs with mu held.
func (s *Server) fenced() {
	for id := range s.dead {
		if since, awaited := s.fences[id]; awaited {
			s.metrics.fenced(time.Since(since))
		}
	}
	clear(s.dead)
}

// followFences records whose end is awaited: processes that had a lease and have neither said
// goodbye nor come back. It runs with mu held.
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

// recover watches the processes that the last keeper knew, and marks the leases that ended with
// it as lost. It is a change, and runs before the server serves.
func (s *Server) recover() error {
	next := s.state.Clone()
	next.Holds(func(id state.HoldID, _ string, _ state.Holder) { s.unresumed = append(s.unresumed, id) })
	for _, id := range s.unresumed {
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
