package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// A consumer attaches to one offer after the other. "connect N SIZE" has it
// connect, ask for offer N, which need not be there yet, and reserve room for
// SIZE bytes of it; "finish" answers when it has mapped the memory, found the
// salt of N at both ends and let go of it; "cancel" has it give up.
type consumer struct {
	path   string
	dev    *cu.Device
	ctx    *cu.Context // nil: attaching needs none
	cancel context.CancelFunc
	done   chan finished
}

type finished struct {
	steps []rival.Step // At is absolute
	err   error
}

func newConsumer(o options) (*consumer, error) {
	dev, ctx, err := o.device(o.context)
	if err != nil {
		return nil, err
	}
	return &consumer{path: o.consumer, dev: dev, ctx: ctx, cancel: func() {}, done: make(chan finished, 1)}, nil
}

func (c *consumer) serve(stdin io.Reader, stdout io.Writer) error {
	err := rival.Serve(stdin, stdout, rival.Answer{Name: "consumer"}, map[string]rival.Handler{
		"connect": c.connect,
		"finish":  c.finish,
		"cancel":  func([]uint64) (rival.Answer, error) { c.cancel(); return c.finish(nil) },
	})
	return errors.Join(err, c.ctx.Close())
}

// connect answers once the producer has been reached.
func (c *consumer) connect(args []uint64) (rival.Answer, error) {
	if len(args) != 2 {
		return rival.Answer{}, errors.New("want: connect N SIZE")
	}
	ctx, cancel := bounded()
	c.cancel = cancel
	connected := make(chan struct{})
	go func() { c.done <- c.attach(ctx, args[0], args[1], func() { close(connected) }) }()
	select {
	case <-connected:
		return rival.Answer{}, nil
	case f := <-c.done:
		c.done <- f
		return rival.Answer{}, f.err
	}
}

func (c *consumer) finish([]uint64) (rival.Answer, error) {
	f := <-c.done // within its bounds
	c.cancel()
	return rival.Answer{Steps: f.steps}, f.err
}

// attach takes offer n, checks it and lets it go.
func (c *consumer) attach(ctx context.Context, n, room uint64, connected func()) (f finished) {
	var received int64
	f.steps = make([]rival.Step, 0, 8)
	note := func(name string, from, to int64) { f.steps = append(f.steps, interval("consumer", name, from, to)) }
	att, err := share.Attach(ctx, c.path, offerName(n), c.dev,
		share.WithRoom(room), share.OnConnected(func(sock.Peer) { connected() }),
		share.OnReceived(func(share.Offer, []*os.File) { received = rival.Now() }),
		share.OnStep(func(s vmm.Step) { now := rival.Now(); note(s.Op, now-s.Took.Nanoseconds(), now) }))
	if err != nil {
		return finished{err: err}
	}
	attached := rival.Now()
	note("attach", received, attached)
	err = att.Report(ctx, c.check(att.Buffer(), n))
	closing := rival.Now()
	err = errors.Join(err, att.Close())
	note("close", closing, rival.Now())
	f.err = err
	return f
}

// check looks for the salt at both ends of the memory.
func (c *consumer) check(buf *vmm.Buffer, n uint64) error {
	if c.ctx == nil {
		return nil
	}
	salt := saltOf(n)
	for _, at := range []uint64{0, buf.Size() - 8} {
		var got [1]uint64
		if err := cu.CopyToHost(c.ctx, nil, got[:], buf.Ptr().Add(at)); err != nil {
			return err
		}
		if got[0] != salt {
			return fmt.Errorf("at offset %d: %#x instead of %#x", at, got[0], salt)
		}
	}
	return nil
}
