package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
)

// The ids under which the store has the keeper's own descriptors. The state gives out
// smaller ones.
const (
	firstOwnID = 1 << 62
	readersID  = firstOwnID + 1
	controlID  = firstOwnID + 2
)

// makeDirectory makes the directory of a socket, if that alone is missing. A volume of a
// pod may be written by others, so no socket may lie in it: this directory within may be
// written by this user alone, and searched by its group. Whether one that is there will do
// is for sock to say, and that there is none to make it in.
func makeDirectory(socket string) error {
	err := os.Mkdir(filepath.Dir(socket), 0o750)
	if err == nil || errors.Is(err, os.ErrExist) || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("making the socket's directory: %w; make it first, or choose another", err)
}

func oneFile(f *os.File) []*os.File { return []*os.File{f} }

// listen takes up the sockets that the store has, or makes them and gives them to it: who
// connects while there is no keeper waits for the next one.
func (s *Server) listen(ctx context.Context) error {
	err := s.socket(ctx, readersID, func(from []*os.File) (files func() ([]*os.File, error), err error) {
		opts := []share.ListenOption{share.WithMode(s.opts.Mode), share.WithPolicy(s.opts.Peers), share.WithTimeout(s.opts.Timeout), share.WithAuthorize(s.authorize)}
		if from != nil {
			opts = append(opts, share.WithInherited(from))
		}
		s.readers, err = share.Listen(s.opts.Socket, opts...)
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
		s.control, err = sock.Listen(s.opts.Socket+controlSuffix, opts...)
		return s.control.Files, err
	})
}

// errNotNamed is all that a stranger hears at the control socket.
var errNotNamed = &Error{Code: state.Denied, Message: "this keeper's policy names neither your uid nor your gid"}

// socket opens one of the sockets: that of the store's, or where somebody has removed
// that, a new one.
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
	for end := time.Now().Add(patience); errors.Is(err, sock.ErrInUse) && removed && time.Now().Before(end); {
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

// authorize decides who gets a lease.
func (s *Server) authorize(peer sock.Peer, o share.Offer) error {
	at("attach")
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.Access == 0 {
		return s.mayList(peer, o)
	}
	ctx, cancel := s.step()
	defer cancel()
	of, err := s.await(ctx, func() *offer { return s.offerOf(o) })
	if err != nil {
		s.metrics.refused(atReaders, err)
		return err
	}
	if of == nil {
		return &Error{Code: state.NotFound, Message: o.Name + " is not kept any more"}
	}
	who := state.Who{UID: peer.UID, GID: peer.GID, PID: peer.PID}
	h := state.Holder{Who: who, Version: of.version, Part: of.part.Index, Access: o.Access, Since: time.Now()}
	if err := s.mayHold(of, h); err != nil {
		s.metrics.refused(atReaders, err)
		return err
	}
	s.holders.admit(of, h)
	return nil
}

// mayList says whether a peer that asks for a list hears of an offer: if it could read it. It
// waits for nothing, and counts as nothing. It runs with mu held.
func (s *Server) mayList(peer sock.Peer, o share.Offer) error {
	of := s.offerOf(o)
	if of == nil {
		return &Error{Code: state.NotFound, Message: o.Name + " is not kept any more"}
	}
	who := state.Who{UID: peer.UID, GID: peer.GID, PID: peer.PID}
	return s.mayHold(of, state.Holder{Who: who, Version: of.version, Part: of.part.Index, Access: cu.ReadOnly, Since: time.Now()})
}
