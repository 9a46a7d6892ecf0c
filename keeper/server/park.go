package server

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/moving"
	"github.com/gpufd/gpufd/keeper/internal/state"
)

// Parking and unparking are a change that plans, the work of a mover without any lock, and a change that records what
// has become of it. A mover that fails or dies has changed nothing: the manifest says where the bytes are. Nobody
// uses what it may have written before it has ended. The store has its pidfd for that, so that the next keeper waits, too.

// park copies the current version of a name to memory of the host, and gives up that of its devices.
func (s *Server) park(name string, version uint64, who state.Who) (api.Moved, error) {
	began := time.Now()
	s.awaitDetached(name, version, who)
	back, err := s.takeMoves()
	if err != nil {
		return api.Moved{}, err
	}
	defer back()
	m, err := s.planned(func() (*move, error) { return s.planPark(name, version, who) })
	if err != nil {
		return api.Moved{}, err
	}
	defer m.close()
	if len(m.parts) == 0 {
		return m.moved(began), nil
	}
	testHookStep("park planned")
	if err := s.carry(m); err != nil {
		return api.Moved{}, fmt.Errorf("parking %s, version %d: %w", name, m.is.N, err)
	}
	testHookStep("park copied")
	if err := s.change(func() error { return s.recordParked(name, m, who) }); err != nil {
		return api.Moved{}, err
	}
	testHookStep("parked")
	s.announceMove(name, m, "parked")
	return m.moved(began), nil
}

// detachWait is how long park waits for readers in the way: one that has just detached may not have been heard yet.
const detachWait = 500 * time.Millisecond

// awaitDetached waits until no reader is in the way, or for detachWait.
func (s *Server) awaitDetached(name string, version uint64, who state.Who) {
	for end := time.Now().Add(detachWait); time.Now().Before(end); {
		_ = s.holders.flush() // which logs its errors
		s.mu.Lock()
		_, _, err := s.state.PlanPark(name, version, who, s.holders.soon)
		s.mu.Unlock()
		var no *state.Error
		if !errors.As(err, &no) || no.Code != state.Conflict || len(no.Holders) == 0 {
			return
		}
		select {
		case <-s.ctx.Done():
			return
		case <-time.After(flushPause):
		}
	}
}

// planPark is part of a change.
func (s *Server) planPark(name string, version uint64, who state.Who) (*move, error) {
	v, plan, err := s.state.PlanPark(name, version, who, s.holders.soon)
	if err != nil {
		return nil, s.whyNoRoom(err)
	}
	m := &move{is: v}
	for _, x := range plan {
		if err := s.add(m, moving.OpPark, x, append([]state.ID{v.Parts[x.Part].Files}, x.Chunks...)...); err != nil {
			return m, err
		}
	}
	return m, nil
}

// recordParked is the change that records what a mover has parked, unless somebody may have the memory by now.
func (s *Server) recordParked(name string, m *move, who state.Who) error {
	next := s.state.Clone()
	for i := range m.parts {
		if p := &m.parts[i]; p.done.Damage != "" {
			if _, err := next.Report(name, m.is.N, p.index, who, state.Damaged, p.done.Damage); err != nil {
				return err
			}
			err := &state.Error{Code: state.IsDamaged, Message: fmt.Sprintf("part %d of %q, version %d, is damaged, and was not parked: %s", p.index, name, m.is.N, p.done.Damage)}
			return errors.Join(err, s.commit(next))
		}
	}
	var all []state.Parking
	for i := range m.parts {
		all = append(all, state.Parking{Part: m.parts[i].index, Chunks: m.parts[i].chunks})
	}
	s.mu.Lock()
	err := next.Park(name, m.is, who, all, s.holders.soon)
	if err == nil { // from now on nobody is admitted, until it is clear where the bytes are
		s.leave(s.offersOf(versionKey{name, m.is.N})...)
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.stay()
	}()
	return s.commit(next)
}

// offersOf returns all offers of a version. It runs with mu held.
func (s *Server) offersOf(v versionKey) (all []*offer) {
	add := func(o *offer) {
		if (versionKey{o.name, o.version}) == v {
			all = append(all, o)
		}
	}
	for _, o := range s.offers {
		add(o)
	}
	for _, o := range s.resumable {
		add(o)
	}
	for _, o := range s.past {
		add(o)
	}
	return all
}
