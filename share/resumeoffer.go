package share

import (
	"os"
	"slices"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/serve"
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

func resumed(o *serve.Terms) { o.Resumed = true }

// OfferFiles offers memory of which this process has only the descriptors. It needs no
// driver, so a process can keep memory for others without a GPU. memory describes it as
// [vmm.Buffer.Export] did in the process that exported it, and files are its descriptors,
// one per chunk, in order. This side cannot check that they fit the description: a
// consumer's driver does when the consumer attaches. Work on the memory must be done before,
// because OfferFiles cannot wait for it.
//
// OfferFiles takes the name from the offer that has it, as [Server.Replace] does, and
// returns at once. Without an error the Standing owns files. [WithLeases],
// [WithIdleTimeout] and [WithGrace] are invalid here.
//
// Errors: [ErrNameTaken] for the name of a prepared offer; [ErrClosed]; [ErrInUse]
// ([WithFence]); an error for a description that no consumer would take, or an invalid
// option.
func (s *Server) OfferFiles(name string, memory vmm.Descriptor, files []*os.File, access cu.Access, opts ...OfferOption) (*Standing, error) {
	terms, err := newOfferOptions(append(slices.Clip(opts), replacing, standing))
	if err != nil {
		return nil, err
	}
	st, err := s.server().OfferFiles(name, memory, files, access, terms)
	return (*Standing)(st), err
}

// standing makes the options be checked for an offer that lasts until Close.
func standing(o *serve.Terms) { o.Stands = true }
