package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/gpufd/gpufd/bench/internal/program"
	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// A producer hands a fresh buffer to its consumer each time it is asked.
type producer struct {
	driver   string
	dev      *cu.Device
	ctx      *cu.Context
	dir      string // of the socket
	srv      *share.Server
	consumer *rival.Rival
	offers   uint64 // made so far
	under    atomic.Pointer[handover]
}

func newProducer(driver string) (*producer, error) {
	p := &producer{driver: driver}
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
	if p.srv, err = share.Listen(filepath.Join(p.dir, "sock"), &share.ListenOptions{OnRefused: p.refused}); err != nil {
		return err
	}
	started := make(chan error, 1)
	go func() {
		var err error
		p.consumer, err = p.start()
		started <- err
	}()
	p.dev, p.ctx, err = program.Device(p.driver, 0)
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
	return rival.Start(ctx, "consumer", self, "-as", "consumer", "-socket", p.srv.Path(), "-driver", p.driver)
}

// handoff SIZE
func (p *producer) handoff(args []uint64) (rival.Answer, error) {
	if len(args) != 1 {
		return rival.Answer{}, errors.New("want: handoff SIZE")
	}
	ctx, cancel := bounded()
	defer cancel()
	p.offers++
	h := newHandover(offerName(p.offers))
	offer, err := p.expect(h)
	if err != nil {
		return rival.Answer{}, err
	}
	if _, err = p.consumer.Ask(ctx, "connect %d", p.offers); err == nil {
		err = p.make(ctx, h, offer, args[0])
	}
	if err != nil {
		_, cancelled := p.consumer.Ask(ctx, "cancel")
		return rival.Answer{}, errors.Join(err, cancelled)
	}
	return h.answer(), nil
}

// refused ends the handover that is under way: its consumer does not get the memory.
func (p *producer) refused(_ sock.Peer, err error) {
	if h := p.under.Load(); h != nil {
		h.settle(err)
	}
}

// expect makes the consumer wait for the memory.
func (p *producer) expect(h *handover) (*share.Offer, error) {
	p.under.Store(h)
	return p.srv.Offer(h.name, nil, &share.OfferOptions{Pending: true, MaxConsumers: 1, Verdict: true, OnEvent: h.observe, Synchronized: true})
}

// make makes a buffer and hands it to the consumer, which has asked for it.
func (p *producer) make(ctx context.Context, h *handover, offer *share.Offer, size uint64) error {
	buf, err := vmm.New(p.dev, size, vmm.WithChunkSize(size))
	if err != nil {
		return err
	}
	return errors.Join(p.hand(ctx, h, offer, buf), buf.Close())
}

// hand offers buf. The goroutine that waits for the consumer is asleep by the time
// that counts.
func (p *producer) hand(ctx context.Context, h *handover, offer *share.Offer, buf *vmm.Buffer) error {
	offering, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	finished := make(chan error, 1)
	go func() {
		err := h.wait(offering)
		if err == nil {
			_, err = p.consumer.Ask(ctx, "finish")
		}
		if err != nil {
			stop(err)
		}
		finished <- err
	}()
	err := p.offer(offering, h, offer, buf)
	if err != nil {
		stop(err)
	}
	if theirs := <-finished; err == nil { // or else it is the same
		err = theirs
	}
	return err
}

// offer offers the memory, writes the data, and returns when the consumer has left.
func (p *producer) offer(ctx context.Context, h *handover, offer *share.Offer, buf *vmm.Buffer) error {
	if err := offer.Provide(buf); err != nil {
		return err
	}
	if err := p.write(buf); err != nil {
		return errors.Join(err, offer.Close())
	}
	h.ready()
	if err := offer.Publish(ctx); err != nil {
		return errors.Join(err, offer.Close())
	}
	defer context.AfterFunc(ctx, func() { _ = offer.Close() })()
	<-offer.Done()
	return offer.Err()
}

// write fills the buffer, writes the salt at both ends, and waits until it is
// there.
func (p *producer) write(buf *vmm.Buffer) error {
	salt := []uint64{saltOf(p.offers)}
	return errors.Join(
		cu.Fill(p.ctx, buf, uint8(0x5a), buf.Size()),
		cu.CopyToDevice(p.ctx, buf, salt),
		cu.CopyToDevice(p.ctx, buf.Ptr().Add(buf.Size()-8), salt))
}

func offerName(n uint64) string { return fmt.Sprintf("offer-%d", n) }

// saltOf spreads the number of an offer over 64 bits.
func saltOf(n uint64) uint64 { return n * 0x9e3779b97f4a7c15 }
