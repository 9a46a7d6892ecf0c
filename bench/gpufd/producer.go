package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/gpufd/gpufd/bench/internal/program"
	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// A producer hands a fresh buffer to its consumer each time it is asked.
type producer struct {
	opts     options
	dev      *cu.Device
	ctx      *cu.Context
	dir      string // of the socket
	srv      *share.Server
	consumer *rival.Rival
	offers   uint64 // made so far
}

func newProducer(o options) (*producer, error) {
	p := &producer{opts: o}
	if err := p.open(); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// open opens the device while the consumer does the same, as processes do
// that somebody else starts.
func (p *producer) open() (err error) {
	if p.dir, err = os.MkdirTemp("", "gpufd-bench-"); err != nil {
		return err
	}
	if p.srv, err = share.Listen(filepath.Join(p.dir, "sock")); err != nil {
		return err
	}
	started := make(chan error, 1)
	go func() {
		var err error
		p.consumer, err = p.start()
		started <- err
	}()
	p.dev, p.ctx, err = p.opts.device()
	if theirs := <-started; err == nil { // or else it is the same
		err = theirs
	}
	return err
}

func (p *producer) serve(stdin io.Reader, stdout io.Writer) error {
	hello := rival.Answer{Name: "gpufd", Info: p.dev.Driver().String()}
	err := rival.Serve(stdin, stdout, hello, map[string]rival.Handler{
		"handoff": p.handoff,
	})
	return errors.Join(err, p.close())
}

func (p *producer) close() error {
	err := p.srv.Close()
	if p.consumer != nil {
		err = errors.Join(err, p.consumer.Close())
	}
	return errors.Join(err, p.ctx.Close(), os.RemoveAll(p.dir))
}

func (p *producer) start() (*rival.Rival, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ctx, cancel := bounded()
	defer cancel()
	return rival.Start(ctx, "consumer", self, "-consumer", p.srv.Path(), "-driver", p.opts.driver)
}

// handoff SIZE CHUNKS
func (p *producer) handoff(args []uint64) (rival.Answer, error) {
	if len(args) != 2 || args[1] == 0 || args[0]%args[1] != 0 {
		return rival.Answer{}, errors.New("want: handoff SIZE CHUNKS, in equal chunks")
	}
	ctx, cancel := bounded()
	defer cancel()
	p.offers++
	h := newHandover(offerName(p.offers))
	p.srv.Expect(h.name)
	err := p.ask(ctx, h, "connect %d", p.offers)
	if err == nil {
		err = p.make(ctx, h, args[0], args[1], p.opts.mode)
	}
	if err != nil {
		return rival.Answer{}, errors.Join(err, p.ask(ctx, h, "cancel"))
	}
	return h.answer(), nil
}

// make makes a buffer and hands it to the consumer, which has asked for it.
func (p *producer) make(ctx context.Context, h *handover, size, chunks uint64, m mode) error {
	program.OnStep(h.step)
	buf, err := vmm.New(p.dev, size, vmm.WithChunkSize(size/chunks))
	if err != nil {
		return err
	}
	err = p.hand(ctx, h, buf, m)
	releasing := rival.Now()
	err = errors.Join(err, buf.Close())
	h.note("release", releasing, rival.Now())
	return err
}

// hand offers buf. The goroutine that waits for the consumer is asleep by the time
// that counts.
func (p *producer) hand(ctx context.Context, h *handover, buf *vmm.Buffer, m mode) error {
	offering, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	finished := make(chan error, 1)
	go func() {
		err := h.wait(offering)
		if err == nil {
			err = p.ask(ctx, h, "finish")
		}
		if err != nil {
			stop(err)
		}
		finished <- err
	}()
	offer, err := p.beforehand(h, buf, m)
	if err == nil {
		h.ready()
		err = offer(offering)
	}
	if err != nil {
		stop(err)
	}
	if theirs := <-finished; err == nil { // or else it is the same
		err = theirs
	}
	return err
}

// An offer returns when its consumer has left.
type offer func(context.Context) error

// beforehand does what the mode does before the buffer is ready, and returns
// what makes the offer.
func (p *producer) beforehand(h *handover, buf *vmm.Buffer, m mode) (offer, error) {
	opts := []share.OfferOption{share.WithLeases(1), share.WithVerdict(), share.OnEvent(h.observe)}
	if m != plain {
		opts = append(opts, share.WithSynchronized())
	}
	if m != ahead {
		err := errors.Join(p.write(h, buf), export(buf))
		return func(ctx context.Context) error { return p.srv.Offer(ctx, h.name, buf, share.ReadOnly, opts...) }, err
	}
	prepared, err := p.srv.Prepare(h.name, buf, share.ReadOnly, opts...)
	if err != nil {
		return nil, err
	}
	if err := p.write(h, buf); err != nil {
		return nil, errors.Join(err, prepared.Close())
	}
	return prepared.Offer, nil
}

// export has the driver export the memory, which the buffer remembers.
func export(buf *vmm.Buffer) error {
	_, files, err := buf.Export()
	return errors.Join(err, sock.CloseFiles(files))
}

// write fills the buffer, writes the salt at both ends, and waits until it is
// there.
func (p *producer) write(h *handover, buf *vmm.Buffer) error {
	salt, writing := []uint64{saltOf(p.offers)}, rival.Now()
	err := errors.Join(
		cu.Fill(p.ctx, buf.Ptr(), uint8(0x5a), buf.Size()),
		cu.CopyToDevice(p.ctx, buf.Ptr(), salt),
		cu.CopyToDevice(p.ctx, buf.Ptr().Add(buf.Size()-8), salt))
	h.note("write", writing, rival.Now())
	return err
}

// ask asks the consumer and notes the steps that it answers with.
func (p *producer) ask(ctx context.Context, h *handover, format string, args ...any) error {
	a, err := p.consumer.Ask(ctx, format, args...)
	h.add(a.Steps)
	return err
}

func offerName(n uint64) string { return fmt.Sprintf("offer-%d", n) }

// saltOf spreads the number of an offer over 64 bits.
func saltOf(n uint64) uint64 { return n * 0x9e3779b97f4a7c15 }
