package server

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/moving"
	"github.com/gpufd/gpufd/keeper/internal/state"
)

// An unparking is one that readers wait for.
type unparking struct {
	done chan struct{}
	err  error // once done
}

// awaitUnparked has a version unparked, unless that goes on already, and waits for it. It runs with mu held, which it
// gives up meanwhile.
func (s *Server) awaitUnparked(v versionKey) error {
	u := s.unparking[v]
	if u == nil {
		u = &unparking{done: make(chan struct{})}
		s.unparking[v] = u
		s.work.Go(func() {
			_, err := s.unparkVersion(v)
			s.mu.Lock()
			defer s.mu.Unlock()
			u.err = err
			delete(s.unparking, v)
			close(u.done)
		})
	}
	s.mu.Unlock()
	<-u.done // it ends with the server
	s.mu.Lock()
	switch {
	case u.err == nil:
		return nil
	case errors.Is(u.err, serve.ErrClosed):
		return errors.Join(serve.Told{Refuse: wire.Refuse{Code: wire.RefusedBusy, Text: "the keeper ends, and the next one brings the memory back: attach again"}}, u.err)
	}
	s.log("a reader of %s, version %d, is refused: %v", v.name, v.version, u.err)
	text := fmt.Sprintf("%s, version %d, is parked in memory of the host and cannot be brought back now: %v", v.name, v.version, u.err)
	return errors.Join(serve.Told{Refuse: wire.Refuse{Code: wire.RefusedBusy, Text: text}}, u.err)
}

// unpark brings the current version of a name back to its devices.
func (s *Server) unpark(name string, version uint64, who state.Who) (api.Moved, error) {
	s.mu.Lock()
	v, err := s.state.MayUnpark(name, version, who)
	s.mu.Unlock()
	if err != nil {
		return api.Moved{}, err
	}
	return s.unparkVersion(versionKey{name, v.N})
}

// unparkVersion brings a version that is kept back to its devices.
func (s *Server) unparkVersion(v versionKey) (api.Moved, error) {
	began := time.Now()
	back, err := s.takeMoves()
	if err != nil {
		return api.Moved{}, err
	}
	defer back()
	m, err := s.planned(func() (*move, error) { return s.planUnpark(v) })
	if err != nil {
		return api.Moved{}, err
	}
	defer m.close()
	if len(m.parts) == 0 {
		return m.moved(began), nil
	}
	testHookStep("unpark planned")
	if err := s.carry(m); err != nil {
		return api.Moved{}, fmt.Errorf("unparking %s, version %d: %w", v.name, v.version, err)
	}
	testHookStep("unpark copied")
	if err := s.change(func() error { return s.recordUnparked(v, m) }); err != nil {
		return api.Moved{}, err
	}
	testHookStep("unparked")
	s.announceMove(v.name, m, "unparked")
	return m.moved(began), m.damage(v)
}

// planUnpark is part of a change.
func (s *Server) planUnpark(v versionKey) (*move, error) {
	is, plan, err := s.state.PlanUnpark(v.name, v.version)
	if err != nil {
		return nil, err
	}
	m := &move{is: is}
	for _, x := range plan {
		if err := s.add(m, moving.OpUnpark, x, x.Chunks...); err != nil {
			return m, err
		}
	}
	return m, nil
}

// recordUnparked is the change that records what a mover has unparked.
func (s *Server) recordUnparked(v versionKey, m *move) (err error) {
	next := s.state.Clone()
	var all []state.Unparking
	var held []uint64
	for i := range m.parts {
		p := &m.parts[i]
		x := state.Unparking{Part: p.index, Damage: p.done.Damage}
		if x.Damage == "" {
			x.Files = next.NewID()
			held = append(held, uint64(x.Files))
			if err == nil {
				err = s.vault.hold(s.store, uint64(x.Files), p.answer)
			}
		}
		all = append(all, x)
	}
	testHookStep("unpark held")
	if err == nil {
		err = next.Unpark(v.name, v.version, all)
	}
	if err == nil {
		err = s.commit(next)
	}
	if err != nil && s.ctx.Err() == nil { // else the next keeper knows what is named
		s.drop(held...)
	}
	return err
}
