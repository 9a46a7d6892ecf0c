package keeper

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
)

// An offer is a part that readers can attach to.
type offer struct {
	name     string // of what is kept
	as       string // that readers ask for
	version  uint64
	part     state.Part
	standing *share.Standing
}

// Data is what readers are told of a part beside its memory: the data of its offer, as
// JSON.
type Data struct {
	Name    string            `json:"name"`
	Version uint64            `json:"version"`
	Part    int               `json:"part"`
	Parts   int               `json:"parts"`
	Labels  map[string]string `json:"labels,omitempty"`
	Digest  string            `json:"digest"`          // of the part's bytes; see package kernels
	Table   json.RawMessage   `json:"table,omitempty"` // what its writer says is in it
}

// OfferName is the name that readers attach to: of part of a version of so many parts.
func OfferName(name string, part, parts int) string {
	if parts == 1 {
		return name
	}
	return fmt.Sprintf("%s/%d", name, part)
}

// reconcile has readers be offered what the state says, no more and no less. It runs with
// mu held. What cannot be offered is said, and the rest is.
func (s *Server) reconcile() {
	want := map[string]bool{}
	s.state.Current(func(name string, v *state.Version) {
		for i := range v.Parts {
			p := &v.Parts[i]
			as := OfferName(name, p.Index, len(v.Parts))
			if p.State != state.OK {
				continue
			}
			want[as] = true
			if o := s.offers[as]; o != nil && o.part.Files == p.Files {
				continue
			}
			at("offer")
			if err := s.offer(name, as, v, p); err != nil {
				s.log("version %d of %s is kept and cannot be offered: %v", v.N, as, err)
			}
		}
	})
	for as, o := range s.offers {
		if !want[as] {
			delete(s.offers, as)
			s.end(o)
		}
	}
}

// offer puts a part up, in the place of the one that has its name.
func (s *Server) offer(name, as string, v *state.Version, p *state.Part) error {
	files, err := s.vault.fetch(uint64(p.Files))
	if err != nil {
		return err
	}
	data, err := s.data(name, v, p)
	if err != nil {
		sock.DropFiles(files)
		return err
	}
	o := &offer{name: name, as: as, version: v.N, part: *p}
	o.standing, err = s.readers.OfferFiles(as, p.Memory, files, share.ReadWrite, share.WithData(data),
		share.OnLease(func(l *share.Lease) { s.holders.began(o, l) }), share.OnEvent(func(e share.Event) { s.hear(o, e) }))
	if err != nil {
		sock.DropFiles(files)
		return err
	}
	if before := s.offers[as]; before != nil {
		s.retire(before)
	}
	s.offers[as] = o
	return nil
}

// data is what readers are told of a part.
func (s *Server) data(name string, v *state.Version, p *state.Part) ([]byte, error) {
	d := Data{Name: name, Version: v.N, Part: p.Index, Parts: len(v.Parts), Labels: v.Labels, Digest: p.Digest}
	if p.Table != 0 {
		files, err := s.vault.fetch(uint64(p.Table))
		if err != nil {
			return nil, err
		}
		defer sock.DropFiles(files)
		if d.Table, err = readTable(files[0]); err != nil {
			return nil, err
		}
	}
	return json.Marshal(d)
}

// readTable reads a table that checkTable has found good.
func readTable(f *os.File) (json.RawMessage, error) {
	return io.ReadAll(io.NewSectionReader(f, 0, share.MaxData))
}

// retire keeps an offer whose name is another's until its last reader has gone.
func (s *Server) retire(o *offer) {
	s.retired = append(s.retired, o)
	s.work.Go(func() { s.release(o) })
}

// release ends a retired offer without readers.
func (s *Server) release(o *offer) {
	if len(o.standing.Leases()) > 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.retired, o)
	if i < 0 {
		return // it has its name
	}
	s.retired = slices.Delete(s.retired, i, i+1)
	s.end(o)
}

// end ends an offer where nobody waits for it.
func (s *Server) end(o *offer) {
	s.work.Go(func() { _ = o.standing.Close() })
}

// hear follows the readers of an offer.
func (s *Server) hear(o *offer, e share.Event) {
	at(e.Kind.String())
	s.attaching.hear(o, e)
	switch e.Kind {
	case share.Mapped:
		s.metrics.attached(e.Since)
	case share.PeerRefused:
		s.metrics.refused(e.Err)
	}
}
