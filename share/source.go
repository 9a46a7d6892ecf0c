package share

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/vmm"
)

// A Source is memory to offer ([Server.Offer]): a [*vmm.Buffer], a [*Legacy], or [Descriptors].
type Source interface {
	Size() uint64 // in bytes
}

// Descriptors are memory of which this process has only the descriptors. To offer it needs no
// driver, so a process can keep memory for others without a GPU. Memory describes it as
// [vmm.Buffer.Export] did in the process that exported it, and Files are its descriptors, one per
// chunk, in order. This side cannot check that they fit the description: a consumer's driver does
// when the consumer attaches. Work on the memory must be done before, because nobody can wait for
// it here. The offer owns the files, unless the call that makes it fails, and closes them.
type Descriptors struct {
	Memory vmm.Descriptor
	Files  []*os.File
}

// Size returns the size of the memory, in bytes.
func (d Descriptors) Size() uint64 { return d.Memory.Size }

// source returns what serves src, or nil for nil.
func (s *Server) source(src Source) (serve.Source, error) {
	switch src := src.(type) {
	case nil:
		return nil, nil
	case *vmm.Buffer:
		return bufferSource{s, src}, nil
	case *Legacy:
		return legacySource{s, src}, nil
	case Descriptors:
		return serve.Files{Memory: src.Memory, Files: slices.Clone(src.Files)}, nil
	}
	return nil, fmt.Errorf("share: a %T cannot be offered: want a *vmm.Buffer, a *share.Legacy or share.Descriptors", src)
}

// bufferSource is virtual memory, which lives as long as its descriptors.
type bufferSource struct {
	server *Server
	buf    *vmm.Buffer
}

func (b bufferSource) Lend(o *serve.Offering) (serve.Loan, error) {
	if b.buf == nil {
		return serve.Loan{}, serve.ErrNoSource
	}
	l, err := b.buf.Lend()
	if err != nil {
		return serve.Loan{}, err
	}
	if most := l.Access; o.Record.Access > most {
		_ = l.Close()
		return serve.Loan{}, fmt.Errorf("%w for %s: it is another process' and was attached %s", vmm.ErrNotShareable, o.Record.Access, most)
	}
	return serve.Loan{Memory: l.Descriptor, Files: l.Files, End: func() { _ = l.Close() }}, nil
}

func (b bufferSource) Synchronize(ctx context.Context) error {
	return synchronize(ctx, b.buf)
}

// synchronize waits for the work of all devices that can use buf.
func synchronize(ctx context.Context, buf *vmm.Buffer) error {
	for _, dev := range buf.Users() {
		if err := dev.Synchronize(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (b bufferSource) Process() wire.ProcessFlags { return b.server.knownFlags(b.buf.Device()) }
func (b bufferSource) Identity() any              { return b.buf }
func (bufferSource) Vouch() error                 { return nil }
