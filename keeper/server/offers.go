package server

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/sock"
)

// An offer is a part that readers can attach to.
type offer struct {
	name     string // under which the part is kept
	as       string // that readers ask for
	version  uint64
	part     state.Part // as it was when it was offered; files has changed since
	files    state.ID   // that readers are sent, or 0 while the part is parked; guarded by the server's mu
	offering *serve.Offering
}

// A partKey identifies a part, wherever its bytes are.
type partKey struct {
	name    string
	version uint64
	part    int
}

func (o *offer) key() partKey { return partKey{o.name, o.version, o.part.Index} }

// reconcile makes the offers match the state. It is part of a change, and runs with mu held. It
// logs which parts cannot be offered, and offers the others. Once Close has taken the offers,
// reconcile does nothing: a change may still run after that.
func (s *Server) reconcile() {
	if s.offers == nil {
		return
	}
	want := map[string]bool{}
	said := s.unoffered
	s.unoffered = false
	s.state.Current(func(name string, v *state.Version) {
		for i := range v.Parts {
			p := &v.Parts[i]
			as := protocol.OfferName(name, p.Index, len(v.Parts))
			if p.State != state.OK {
				continue
			}
			want[as] = true
			if o := s.offers[as]; o != nil && o.name == name && o.version == v.N {
				s.supply(o, p)
				continue
			}
			if err := s.offer(name, as, v, p); err != nil {
				s.unoffered = true
				if !said {
					s.log("version %d of %s is kept and cannot be offered now; the keeper tries again: %v", v.N, as, err)
				}
				want[as] = s.offers[as] != nil && s.offers[as].version == v.N // no other version is served instead
			}
		}
	})
	for as, o := range s.offers {
		if want[as] {
			continue
		}
		delete(s.offers, as)
		s.past = append(s.past, o)
		if next := s.state.Next(o.name, o.version); next != nil { // the next version has other parts
			o.offering.Supersede(next.Parts[0].Memory.Generation)
		} else {
			s.end(o)
		}
	}
	s.reconcileResumable()
	s.supplyPast()
}

// supply gives an offer the descriptors of a part that has been parked or unparked since. It runs with mu held.
func (s *Server) supply(o *offer, p *state.Part) {
	if o.files == p.Files {
		return
	}
	var files []*os.File
	if p.Files != 0 {
		var err error
		if files, err = s.vault.fetch(uint64(p.Files)); err != nil {
			s.log("version %d of %s cannot be handed out now; the keeper tries again: %v", o.version, o.as, err)
			s.unoffered = true
			return
		}
	}
	o.offering.SetFiles(files)
	o.files = p.Files
}

// supplyPast does the same for offers that others have replaced, and that have leases: readers that have detached come
// back for them. It runs with mu held.
func (s *Server) supplyPast() {
	s.past = slices.DeleteFunc(s.past, func(o *offer) bool { return serve.IsClosed(o.offering.Done()) })
	for _, o := range s.past {
		if v := s.state.Kept(o.name, o.version); v != nil {
			s.supply(o, &v.Parts[o.part.Index])
		}
	}
}

// offer offers a part, in place of the part that has its name.
func (s *Server) offer(name, as string, v *state.Version, p *state.Part) error {
	o, err := s.offerPart(name, as, v, p, false)
	if err != nil {
		return err
	}
	if before := s.offers[as]; before != nil {
		s.past = append(s.past, before)
	}
	s.offers[as] = o
	return nil
}

// offerPart offers a part to all readers, or to those that resume.
func (s *Server) offerPart(name, as string, v *state.Version, p *state.Part, resumed bool) (*offer, error) {
	m, ok := s.ready[p.Files]
	if delete(s.ready, p.Files); !ok {
		var err error
		if m, err = s.offerFiles(name, v, p); err != nil {
			return nil, err
		}
	}
	var err error
	o := &offer{name: name, as: as, version: v.N, part: *p, files: p.Files}
	o.offering, err = s.readers.Offer(as, serve.Files{Memory: p.Memory, Files: m.files, Absent: p.Files == 0}, &serve.Terms{
		Access: gpumem.ReadWrite, Data: m.data, Replaces: true, Resumes: resumed, Synchronized: true,
		OnLease: func(l *serve.Lease) { s.holders.began(o, l) }, OnEvent: func(e serve.Event) { s.hear(o, e) },
	})
	if err != nil {
		sock.DropFiles(m.files)
		return nil, err
	}
	return o, nil
}

// offerFiles are what an offer is made of.
type offerFiles struct {
	files []*os.File
	data  []byte
}

func (s *Server) offerFiles(name string, v *state.Version, p *state.Part) (m offerFiles, err error) {
	if m.data, err = s.data(name, v, p); err == nil && p.Files != 0 {
		m.files, err = s.vault.fetch(uint64(p.Files))
	}
	return m, err
}

// prepare fetches the offerFiles of versions that next has and the state does not: a version
// that cannot be offered is not committed. It is part of a change; discard follows.
func (s *Server) prepare(next *state.State) error {
	var failed error
	next.Current(func(name string, v *state.Version) {
		if s.state.Number(name) == v.N {
			return
		}
		for i := range v.Parts {
			if p := &v.Parts[i]; failed == nil && p.State == state.OK {
				s.ready[p.Files], failed = s.offerFiles(name, v, p)
			}
		}
	})
	if failed != nil {
		return fmt.Errorf("the version could not be offered, and is not committed: %w", failed)
	}
	return nil
}

// discard closes what prepare has fetched and no offer has used.
func (s *Server) discard() {
	for _, m := range s.ready {
		sock.DropFiles(m.files)
	}
	clear(s.ready)
}

// data returns what readers are told of a part. It is made once, and readers share it. A table is
// left as its writer wrote it, and read into its place: it may be long.
func (s *Server) data(name string, v *state.Version, p *state.Part) ([]byte, error) {
	head, err := api.Data{Name: name, Version: v.N, Part: p.Index, Parts: len(v.Parts), Labels: v.Labels, Digest: p.Digest, Layout: p.Layout}.Encode()
	if err != nil || p.Table == 0 {
		return head, err
	}
	files, err := s.vault.fetch(uint64(p.Table))
	if err != nil {
		return nil, err
	}
	defer sock.DropFiles(files)
	const before, after = `,"table":`, `}`
	text := make([]byte, 0, uint64(len(head)+len(before)+len(after))+p.TableSize)
	text = append(append(text, head[:len(head)-1]...), before...)
	table := text[len(text) : len(text)+int(p.TableSize)]
	if _, err := files[0].ReadAt(table, 0); err != nil {
		return nil, fmt.Errorf("reading the table of part %d: %w", p.Index, err)
	}
	return append(text[:len(text)+len(table)], after...), nil
}

// end ends an offer without waiting for it.
func (s *Server) end(o *offer) {
	s.work.Go(func() { _ = o.offering.Close() })
}

// hear counts readers that have attached to an offer, and notes those that detach.
func (s *Server) hear(o *offer, e serve.Event) {
	testHookStep(e.Kind.String())
	switch e.Kind {
	case serve.Mapped:
		s.metrics.attached(e.Since)
	case serve.Detached:
		s.holders.detached(o, e.Lease)
	}
}

// hearRefused counts a reader that was refused. authorize counts those that it refuses itself.
func (s *Server) hearRefused(_ sock.Peer, err error) {
	var own *state.Error
	if !errors.As(err, &own) && !errors.Is(err, sock.ErrPeerLost) {
		s.metrics.refused(atReaders, err)
	}
}
