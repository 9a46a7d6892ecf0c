package server

import (
	"context"
	"errors"
	"time"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/sock"
)

// watchQueue is how many events wait for a watcher; a slower watcher is dropped.
const watchQueue = 64

// announce tells watchers. It runs with mu held.
func (s *Server) announce(e api.Event) {
	e.Time = time.Now()
	for w, name := range s.watchers {
		if name != "" && name != e.Name {
			continue
		}
		select {
		case w <- e:
		default:
			delete(s.watchers, w)
			close(w)
		}
	}
}

// watch sends events to the client until it hangs up.
func (c *session) watch(name string) error {
	s, events := c.server, make(chan api.Event, watchQueue)
	s.mu.Lock()
	s.watchers[events] = name
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.watchers, events)
		s.mu.Unlock()
	}()
	ctx, cancel := context.WithCancel(s.ctx) // canceled when the client hangs up, too
	hungUp := make(chan struct{})
	go func() {
		defer close(hungUp)
		defer cancel()
		_ = c.conn.WaitHangup(ctx)
	}()
	defer func() {
		cancel()
		<-hungUp
	}()
	for {
		select {
		case <-ctx.Done():
			return errEnding // the client has gone, or asks the next keeper
		case e, ok := <-events:
			if !ok {
				return &state.Error{Code: "slow", Message: "you did not read events as fast as they came: watch again"}
			}
			if !s.mayRead(e.Name, c.who) {
				continue
			}
			step, done := context.WithTimeout(ctx, s.opts.Timeout)
			err := protocol.Send(step, c.conn, protocol.Reply{Event: &e})
			done()
			if ctx.Err() != nil || errors.Is(err, sock.ErrPeerLost) {
				return errEnding
			}
			if err != nil {
				return err
			}
		}
	}
}

func (s *Server) mayRead(name string, who state.Who) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.state.Stat(name, who)
	return state.CodeOf(err) != state.Denied
}

// drain stops or resumes new leases of a name or a device, and tells the holders of
// leases.
func (s *Server) drain(r protocol.Request, who state.Who) error {
	err := s.mutate(func(st *state.State) error {
		if r.Device == "" {
			return st.Drain(r.Name, who, r.On)
		}
		dev, err := gpumem.ParseUUID(r.Device)
		if err != nil {
			return protocol.BadRequest("device: %v", err)
		}
		return st.DrainDevice(dev, who, r.On)
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !r.On {
		s.announce(api.Event{Name: r.Name, Kind: "served"})
		return nil
	}
	s.announce(api.Event{Name: r.Name, Kind: "draining"})
	for _, o := range s.offers {
		if o.name == r.Name || o.part.Memory.Device.String() == r.Device {
			s.work.Go(func() { s.tell(o.offering.Leases()) })
		}
	}
	return nil
}

// tell sends readers DrainNotice.
func (s *Server) tell(leases []*serve.Lease) {
	ctx, cancel := context.WithTimeout(s.ctx, s.opts.Timeout)
	defer cancel()
	for _, l := range leases {
		_ = l.Notify(ctx, []byte(protocol.DrainNotice))
	}
}
