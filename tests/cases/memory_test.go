package cases

import (
	"context"
	"io"
	"path/filepath"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/vmm"
)

const (
	size   = 64 << 20 // a GPU keeps small pieces mapped, and then nothing notices
	filler = 7        // the memory's first word
)

// memory is what the cases close.
type memory interface {
	cu.Pointer
	Close() error
}

// A maker makes memory that begins with filler. What is below it is given to later, to be closed behind it.
// dir is an empty directory.
type maker func(ctx *cu.Context, dir string, later func(io.Closer)) (memory, error)

var makers = map[string]maker{"Memory": newMemory, "Buffer": newBuffer, "View": newView, "Mapping": newMapping, "Attachment": newAttachment}

func filled[M memory](ctx *cu.Context, m M, err error) (memory, error) {
	if err != nil {
		return nil, err
	}
	return m, cu.Fill(ctx, m.Ptr(), uint32(filler), 1)
}

func newMemory(ctx *cu.Context, _ string, _ func(io.Closer)) (memory, error) {
	m, err := ctx.Alloc(size)
	return filled(ctx, m, err)
}

func newBuffer(ctx *cu.Context, _ string, _ func(io.Closer)) (memory, error) {
	m, err := vmm.New(ctx.Device(), size)
	return filled(ctx, m, err)
}

func newView(ctx *cu.Context, _ string, later func(io.Closer)) (memory, error) {
	buf, err := vmm.New(ctx.Device(), size)
	if err != nil {
		return nil, err
	}
	later(buf)
	m, err := buf.NewView(cu.ReadWrite)
	return filled(ctx, m, err)
}

func newMapping(ctx *cu.Context, _ string, later func(io.Closer)) (memory, error) {
	room, err := vmm.Reserve(ctx.Device().Driver(), size)
	if err != nil {
		return nil, err
	}
	later(room)
	a, err := vmm.Create(ctx.Device(), size)
	if err != nil {
		return nil, err
	}
	later(a)
	m, err := room.Map(0, a)
	if err != nil {
		return nil, err
	}
	return filled(ctx, m, m.SetAccess(cu.ReadWrite))
}

func newAttachment(ctx *cu.Context, dir string, later func(io.Closer)) (memory, error) {
	buf, err := vmm.New(ctx.Device(), size)
	if err != nil {
		return nil, err
	}
	later(buf)
	srv, err := share.Listen(filepath.Join(dir, "s"), nil)
	if err != nil {
		return nil, err
	}
	later(srv)
	if _, err := filled(ctx, buf, nil); err != nil {
		return nil, err
	}
	if _, err := srv.Offer("weights", buf, nil); err != nil {
		return nil, err
	}
	wait, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return share.Attach(wait, srv.Path(), "weights", ctx.Device(), nil)
}
