package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/sock"
)

// The ids under which the store has the keeper's own descriptors. The state gives out
// smaller ones.
const (
	firstOwnID = 1 << 62
	readersID  = firstOwnID + 1
	controlID  = firstOwnID + 2
	moverID    = firstOwnID + 3 // the pidfd of a mover that writes memory
)

// makeDirectory makes the directory of a socket, if that alone is missing. A volume of a pod
// may be writable by others, so no socket may lie in it: this directory within is writable by
// this user alone, and searchable by its group. Package sock checks one that exists.
func makeDirectory(socket string) error {
	dir := filepath.Dir(socket)
	err := os.Mkdir(dir, 0o750)
	switch {
	case err == nil, errors.Is(err, os.ErrExist):
		return nil
	case errors.Is(err, os.ErrNotExist): // as sock says it, but in the keeper's name and not the store's
		return fmt.Errorf("sock: listen %s: %w: %s: %w; make it first: mkdir -p -m 700 %s", socket, sock.ErrNoDirectory, dir, syscall.ENOENT, dir)
	}
	return fmt.Errorf("making the socket's directory: %w; make it first, or choose another", err)
}

func oneFile(f *os.File) []*os.File { return []*os.File{f} }

// listen inherits the sockets from the store, or makes them and gives them to it: a client that
// connects while there is no keeper waits for the next one.
func (s *Server) listen(ctx context.Context) error {
	err := s.socket(ctx, readersID, func(from []*os.File) (files func() ([]*os.File, error), err error) {
		o := serve.NewOptions()
		o.Timeout, o.Policy, o.Connections = s.opts.Timeout, s.opts.Peers, s.budget.connections
		o.AllowName, o.Allow, o.Parts, o.OnRefused = s.mayAsk, s.authorize, s.partsOf, s.hearRefused
		o.Reassures = true // to unpark takes as long as it takes
		o.Sock = []sock.ListenOption{sock.WithMode(s.opts.Mode)}
		if from != nil {
			o.Sock = append(o.Sock, sock.WithInherited(from))
		}
		s.readers, err = serve.Listen(s.opts.Socket, o)
		return s.readers.Files, err
	})
	if err != nil {
		return err
	}
	return s.socket(ctx, controlID, func(from []*os.File) (files func() ([]*os.File, error), err error) {
		opts := []sock.ListenOption{sock.WithMode(s.opts.Mode), sock.WithPolicy(s.opts.Peers), sock.WithFarewell(lastWords(errNotNamed)), sock.WithoutFiles()}
		if from != nil {
			opts = append(opts, sock.WithInherited(from))
		}
		s.control, err = sock.Listen(s.opts.Socket+protocol.ControlSuffix, opts...)
		return s.control.Files, err
	})
}

// errNotNamed is all that the control socket tells a user without a rule.
var errNotNamed = &state.Error{Code: state.Denied, Message: "this keeper's policy names neither your uid nor your gid"}

// socket opens one of the sockets: the store's, or a new one if somebody has removed that.
func (s *Server) socket(ctx context.Context, id uint64, open func([]*os.File) (func() ([]*os.File, error), error)) error {
	removed := false
	if _, ok := s.vault.files[id]; ok {
		from, err := s.vault.fetch(id)
		if err != nil {
			return err
		}
		_, err = open(from)
		err = errors.Join(err, sock.CloseFiles(from))
		if err == nil || !errors.Is(err, sock.ErrNotListener) && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		s.log("somebody has removed the socket, a new one is made: %v", err)
		if err := s.vault.drop(ctx, id); err != nil {
			return err
		}
		removed = true
	}
	files, err := open(nil)
	for end := time.Now().Add(patience); errors.Is(err, sock.ErrListening) && removed && time.Now().Before(end); {
		time.Sleep(takeOverPause) // the store closes what was dropped, with the lock, in its own time
		files, err = open(nil)
	}
	if err != nil {
		return err
	}
	own, err := files()
	if err != nil {
		return err
	}
	return errors.Join(s.vault.hold(ctx, id, own), sock.CloseFiles(own))
}

// mayAsk decides whether a peer may ask for a part, kept or not: a refused peer does not learn
// which. It waits for nothing.
func (s *Server) mayAsk(peer sock.Peer, as string, access gpumem.Access) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.state.MayAsk(protocol.NameOf(as), state.Who{UID: peer.UID, GID: peer.GID, PID: peer.PID}, access)
	if err != nil {
		s.metrics.refused(atReaders, err)
	}
	return err
}

// authorize decides whether a reader gets a lease.
func (s *Server) authorize(peer sock.Peer, o wire.Offer, access gpumem.Access) error {
	testHookStep("attach")
	s.mu.Lock()
	defer s.mu.Unlock()
	if access == 0 {
		return s.mayList(peer, o)
	}
	err := s.admit(state.Holder{Who: state.Who{UID: peer.UID, GID: peer.GID, PID: peer.PID}, Access: access}, o)
	if err != nil {
		s.metrics.refused(atReaders, err)
	}
	return err
}

// admit decides whether a reader gets a lease of an offer. It waits until it is clear whether the offer stays, and until
// a parked part is on its device again, unless the reader needs no descriptors. It runs with mu held, which it gives up
// while it waits.
func (s *Server) admit(h state.Holder, o wire.Offer) error {
	began, waited := time.Now(), false
	for {
		ctx, cancel := s.step()
		of, err := s.await(ctx, func() *offer { return s.offerOf(o, h.Who) })
		cancel()
		if err != nil {
			return err
		}
		if of == nil {
			return &state.Error{Code: state.NotFound, Message: o.Name + " is not kept any more"}
		}
		past := s.pastOf(o)
		if past == of {
			past = nil
		}
		if past != nil && s.holders.has(h.Who) && time.Since(began) < detachWait { // it may have detached from that just now
			s.hearDetached()
			continue
		}
		if past != nil && past.files == 0 && !waited {
			return notHanded(wire.RefusedStale, "another version of %s has replaced that, which is parked for processes that have had it: attach anew", o.Name)
		}
		h.Version, h.Part, h.Since = of.version, of.part.Index, time.Now()
		err = s.mayHold(of, h)
		switch {
		case state.CodeOf(err) == state.Quota && s.holders.has(h.Who) && time.Since(began) < detachWait:
			s.hearDetached()
			continue
		case err != nil:
			return err
		case of.files != 0 || o.Resume != 0:
			s.holders.noteAdmitted(of, h)
			return nil
		}
		if v := s.state.Kept(of.name, of.version); v != nil && len(v.Parts[of.part.Index].Parked) == 0 {
			return notHanded(wire.RefusedBusy, "version %d of %s cannot be handed out now: attach again", of.version, of.as)
		}
		if err := s.awaitUnparked(versionKey{of.name, of.version}); err != nil {
			return err
		}
		waited = true
	}
}

// notHanded returns an error of admit that the reader is told.
func notHanded(code wire.RefusalCode, format string, a ...any) error {
	return serve.Told{Refuse: wire.Refuse{Code: code, Text: fmt.Sprintf(format, a...)}}
}

// hearDetached waits a moment for what the readers say over other connections: a process that attaches again has
// detached, or has left, just before. It runs with mu held, which it gives up meanwhile.
func (s *Server) hearDetached() {
	s.mu.Unlock()
	defer s.mu.Lock()
	_ = s.holders.flush() // which logs its errors
	select {
	case <-s.ctx.Done():
	case <-time.After(flushPause):
	}
}

// partsOf returns the parts of what is kept under a name, if it has several: a reader that asks for
// the name alone would wait in vain. It returns those that the peer may read.
func (s *Server) partsOf(peer sock.Peer, as string) (parts []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Current(func(name string, v *state.Version) {
		if name != as || len(v.Parts) == 1 {
			return
		}
		for _, p := range v.Parts {
			of := s.offers[protocol.OfferName(name, p.Index, len(v.Parts))]
			if of != nil && s.mayList(peer, wire.Offer{Name: of.as}) == nil {
				parts = append(parts, of.as)
			}
		}
	})
	return parts
}

// mayList returns nil if a list shows an offer to a peer: if the peer could read it. It waits for
// nothing, and counts nothing. It runs with mu held.
func (s *Server) mayList(peer sock.Peer, o wire.Offer) error {
	who := state.Who{UID: peer.UID, GID: peer.GID, PID: peer.PID}
	of := s.offerOf(o, who)
	if of == nil {
		return &state.Error{Code: state.NotFound, Message: o.Name + " is not kept any more"}
	}
	return s.mayHold(of, state.Holder{Who: who, Version: of.version, Part: of.part.Index, Access: gpumem.ReadOnly, Since: time.Now()})
}
