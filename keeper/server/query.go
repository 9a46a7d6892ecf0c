package server

import (
	"fmt"
	"os"
	"slices"

	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/keeper/internal/state"
)

// Status describes the keeper.
func (s *Server) Status() api.Status {
	if s.isZero() {
		return api.Status{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return api.Status{PID: os.Getpid(), Store: s.vault.pid(), Since: s.since, Names: s.state.Len(), Version: s.opts.Version, Pool: s.pool()}
}

// remove removes a name, and gives up at once what nobody has of it.
func (s *Server) remove(name string, version uint64, who state.Who) error {
	err := s.mutate(func(st *state.State) error {
		if info, err := st.Stat(name, who); err == nil && version != 0 && info.Version != 0 && info.Version != version {
			return &state.Error{Code: state.Conflict, Message: fmt.Sprintf("%q has version %d, and version %d was to be removed", name, info.Version, version)}
		}
		return st.Remove(name, who)
	})
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.announce(api.Event{Name: name, Kind: "removed"})
	}
	return err
}

func (s *Server) report(r protocol.Request, who state.Who) (protocol.Reply, error) {
	verdict := state.PartState(r.Verdict)
	if !slices.Contains([]state.PartState{state.OK, state.Damaged, state.Quarantined}, verdict) {
		return protocol.Reply{}, protocol.BadRequest("verdict %q: want %q, %q or %q", r.Verdict, state.OK, state.Damaged, state.Quarantined)
	}
	var counted bool
	err := s.mutate(func(st *state.State) (err error) {
		counted, err = st.Report(r.Name, r.Version, r.Part, who, verdict, r.Reason)
		return err
	})
	if err != nil {
		return protocol.Reply{}, err
	}
	if counted {
		s.mu.Lock()
		defer s.mu.Unlock()
		kind := r.Verdict
		if verdict == state.OK {
			kind = "served" // again
		}
		s.announce(api.Event{Name: r.Name, Kind: kind, Version: r.Version, Text: r.Reason})
	}
	return protocol.Reply{Counted: counted}, nil
}
