package share

import (
	"os"
	"slices"

	"github.com/gpufd/gpufd/cu"
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
