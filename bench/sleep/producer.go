package main

import (
	"context"
	"errors"
	"io"

	"github.com/gpufd/gpufd/bench/internal/program"
	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/vmm"
)

// A producer offers memory of whatever shape it is asked for.
type producer struct {
	dev   *cu.Device
	ctx   *cu.Context
	srv   *share.Server
	buf   *vmm.Buffer // nil until it is asked
	offer *share.Offer
}

func beProducer(driver, socket string, stdin io.Reader, stdout io.Writer) error {
	p := &producer{}
	err := p.open(driver, socket)
	if err == nil {
		err = rival.Serve(stdin, stdout, rival.Answer{Name: "producer"}, map[string]rival.Handler{"offer": p.make})
	}
	return errors.Join(err, p.drop(), p.srv.Close(), p.ctx.Close())
}

func (p *producer) open(driver, socket string) (err error) {
	if p.dev, p.ctx, err = program.Device(driver, 0); err != nil {
		return err
	}
	p.srv, err = share.Listen(socket, nil)
	return err
}

// drop frees the memory, which nobody has attached.
func (p *producer) drop() error {
	err := errors.Join(p.offer.Close(), p.buf.Close())
	p.offer, p.buf = nil, nil
	return err
}

// make makes memory of a shape, fills and offers it: offer COUNT SIZE
func (p *producer) make(args []uint64) (rival.Answer, error) {
	if len(args) != 2 {
		return rival.Answer{}, errors.New("want: offer COUNT SIZE")
	}
	err := p.drop()
	if err == nil {
		p.buf, err = vmm.New(p.dev, args[0]*args[1], vmm.WithChunkSize(args[1]))
	}
	if err != nil {
		return rival.Answer{}, err
	}
	for i := range args[0] {
		if err := cu.Fill(p.ctx, p.buf.Ptr().Add(i*args[1]), pattern(i), args[1]); err != nil {
			return rival.Answer{}, err
		}
	}
	if err := p.ctx.Synchronize(context.Background()); err != nil {
		return rival.Answer{}, err
	}
	p.offer, err = p.srv.Offer(offerName, p.buf, nil)
	return rival.Answer{}, err
}

// pattern is the bytes of a chunk.
func pattern(chunk uint64) byte { return byte(chunk*7 + 1) }
