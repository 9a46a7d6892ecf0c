package share

import (
	"context"
	"os"
	"slices"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/vmm"
)

// OfferResumed is [Server.OfferFiles] only for consumers that have mapped the memory
// already, and take a lease of it again ([Attachment.Resume], [Follow]). Use it after a
// restart of the producer, for memory whose name another offer has by now. It does not
// take the name, and other consumers do not see it. Several such offers, each of its own
// memory, may stand under one name. If another offer has the name, consumers are told at
// once ([Attachment.Superseded]).
//
// Without an error the Standing owns files. The errors are those of OfferFiles, except
// [ErrNameTaken].
func (s *Server) OfferResumed(name string, memory vmm.Descriptor, files []*os.File, access cu.Access, opts ...OfferOption) (*Standing, error) {
	return s.OfferFiles(name, memory, files, access, append(slices.Clip(opts), resumed)...)
}

func resumed(o *offerOptions) { o.resumed = true }

// resumable returns the offer, made by OfferResumed, of memory that a consumer wants to
// resume, or nil. It runs with mu held.
func (s *Server) resumable(want wire.Attach) *offering {
	for _, o := range s.resumed[want.Name] {
		if want.Resume != 0 && o.resumable(want) && !o.isOver() {
			return o
		}
	}
	return nil
}

// putBeside publishes an offering of OfferResumed. It runs with the server's mu held.
func (o *offering) putBeside(ctx context.Context) {
	s, name := o.server, o.record.Name
	s.resumed[name], o.published, o.caller = append(s.resumed[name], o), true, ctx
}

// removeBeside undoes putBeside. It runs with the server's mu held.
func (o *offering) removeBeside() {
	s, name := o.server, o.record.Name
	s.resumed[name] = slices.DeleteFunc(s.resumed[name], func(x *offering) bool { return x == o })
	if len(s.resumed[name]) == 0 {
		delete(s.resumed, name)
	}
}

// tellOfNewer tells the consumer of an OfferResumed that another offer has the name, or its
// place.
func (l *Lease) tellOfNewer() {
	o := l.offering
	if !o.opts.resumed {
		return
	}
	o.server.mu.Lock()
	by := o.newer
	if has := o.server.offers[o.record.Name]; has != nil {
		by = has.record.Memory.Generation
	}
	o.server.mu.Unlock()
	if by != 0 {
		_ = l.sendRecord(superseded(by)) // a consumer that has gone need not know
	}
}
