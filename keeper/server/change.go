package server

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/state"
)

// Changes run one at a time, and each waits for the fd store. A store may take long: it is
// busy, or somebody has stopped it. Nothing else waits for the store. So a change holds
// changeLock from its beginning to its end, and takes mu only while it publishes its result.

// A changeLock is held by one change at a time.
type changeLock struct {
	taken chan struct{} // has a token while a change holds the lock
	long  time.Duration
	late  *time.Timer               // fires when a change has held it for long
	since atomic.Pointer[time.Time] // when it was taken, or nil if it is free
}

func newChangeLock(long time.Duration, onLate func()) *changeLock {
	t := &changeLock{taken: make(chan struct{}, 1), long: long, late: time.AfterFunc(long, onLate)}
	t.late.Stop()
	return t
}

// heldLong reports whether a change has held the lock for long.
func (t *changeLock) heldLong() bool {
	since := t.since.Load()
	return since != nil && time.Since(*since) >= t.long
}

// begin takes changeLock. It waits until ctx is done or the server ends.
func (s *Server) begin(ctx context.Context) error {
	select {
	case s.changeLock.taken <- struct{}{}:
	case <-s.ctx.Done():
		return errEnding
	case <-ctx.Done():
		return s.silence(api.StoreSilent, "nothing was changed: try again when it does")
	}
	now := time.Now()
	s.changeLock.since.Store(&now)
	s.changeLock.late.Reset(s.changeLock.long)
	return nil
}

// finish ends a change and releases changeLock.
func (s *Server) finish() {
	t := s.changeLock
	t.late.Stop()
	long := t.heldLong()
	t.since.Store(nil)
	<-t.taken
	if long && s.store.Err() == nil && !s.vault.lost() { // else the wait has ended without an answer
		s.log("the fd store answers again")
	}
}

// logLateChange logs that a change takes long.
func (s *Server) logLateChange() {
	s.log("the fd store, process %d, has not answered for %s: readers are served, and nothing can be changed until it answers", s.vault.pid(), s.opts.Timeout)
}

func (s *Server) silence(code state.Code, what string) error {
	return &state.Error{Code: code, Message: fmt.Sprintf("the fd store, process %d, has not answered for %s; %s", s.vault.pid(), s.opts.Timeout, what)}
}

// change makes a change, and waits for it as long as a step may take. After that the change goes
// on without a waiter, for nothing else learns what the store takes of it.
func (s *Server) change(f func() error) error {
	ctx, cancel := s.step()
	defer cancel()
	return s.within(ctx, f)
}

// within is change with another bound. f may still run when it returns.
func (s *Server) within(ctx context.Context, f func() error) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	made := make(chan error, 1)
	s.work.Go(func() {
		err := f()
		s.finish()
		made <- err
	})
	select {
	case err := <-made:
		return err
	case <-ctx.Done():
		select {
		case err := <-made:
			return err
		default:
		}
		return s.silence(api.Unknown, "it is not known whether the change was made: ask when the store answers again")
	}
}

// mutate changes what is kept: all of what f does, or nothing. The store has the change before
// it is published. After an error f may still run.
func (s *Server) mutate(f func(*state.State) error) error {
	return s.change(func() error {
		next := s.state.Clone()
		err := f(next)
		var no *state.Error
		if err != nil && !(errors.As(err, &no) && no.Changed) {
			return err
		}
		return errors.Join(err, s.commit(next))
	})
}

// takeLeave makes readers that come now wait for the offers that end with next, until it is
// clear whether they do: such a reader gets no lease of a version that is about to be dropped.
// A reader that was admitted just before may still get one: it keeps what it maps, is told that
// the version is superseded, and is shown as a holder of a version that was given up.
func (s *Server) takeLeave(next *state.State) {
	next = next.Clone()
	for id := range s.dead { // as commit does
		next.Fence(id)
	}
	next.Retire(time.Now())
	stays := map[partKey]bool{}
	next.Current(func(name string, v *state.Version) {
		for i := range v.Parts {
			stays[partKey{name, v.N, i}] = v.Parts[i].State == state.OK
		}
	})
	next.Awaited(func(name string, v *state.Version, p *state.Part) { stays[partKey{name, v.N, p.Index}] = true })
	s.mu.Lock()
	defer s.mu.Unlock()
	var leaving []*offer
	for _, o := range s.offers {
		if !stays[o.key()] {
			leaving = append(leaving, o)
		}
	}
	for key, o := range s.resumable {
		if !stays[key] {
			leaving = append(leaving, o)
		}
	}
	s.leave(leaving...)
}

// leave makes readers of offers wait until stay is called. It runs with mu held, in a change.
func (s *Server) leave(all ...*offer) {
	if s.left == nil {
		s.leaving, s.left = map[*offer]bool{}, make(chan struct{})
	}
	for _, o := range all {
		s.leaving[o] = true
	}
}

// stay ends leave. It runs with mu held.
func (s *Server) stay() {
	if s.left != nil {
		close(s.left)
	}
	s.leaving, s.left = nil, nil
}

// await waits until it is clear whether an offer stays, and returns the one that its reader
// gets then. It runs with mu held, which it gives up while it waits. When ctx is done it looks
// once more: the change may have ended at the same time.
func (s *Server) await(ctx context.Context, o func() *offer) (*offer, error) {
	of := o()
	for s.leaving[of] && ctx.Err() == nil {
		left := s.left
		s.mu.Unlock()
		select {
		case <-left:
		case <-ctx.Done():
		}
		s.mu.Lock()
		of = o()
	}
	if s.leaving[of] {
		return nil, s.undecided(of)
	}
	return of, nil
}

// undecided returns the reason to refuse an offer that is leaving.
func (s *Server) undecided(o *offer) error {
	return s.silence(api.StoreSilent, fmt.Sprintf("it has not said whether version %d of %s is replaced: try again when it does", o.version, o.as))
}
