package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/gpufd/gpufd/bench/internal/program"
	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// A consumer attaches to one offer after the other. "connect N" has it connect
// and ask for offer N, which need not be there yet. It holds the memory until
// "finish", which answers when it has found the salt of N at both ends and let go
// of it; "cancel" makes it give up.
type consumer struct {
	path   string
	dev    *cu.Device
	ctx    *cu.Context
	cancel context.CancelFunc
	taking chan taken // what connect began, or nil
}

// taken is what came of attaching to offer n.
type taken struct {
	n   uint64
	att *share.Attachment
	err error
}

func newConsumer(driver, socket string) (*consumer, error) {
	dev, ctx, err := program.Device(driver, 0)
	if err != nil {
		return nil, err
	}
	return &consumer{path: socket, dev: dev, ctx: ctx}, nil
}

func (c *consumer) serve(stdin io.Reader, stdout io.Writer) error {
	err := rival.Serve(stdin, stdout, rival.Answer{Name: "consumer"}, map[string]rival.Handler{
		"connect": c.connect,
		"finish":  c.finish,
		"cancel":  c.giveUp,
	})
	return errors.Join(err, c.ctx.Close())
}

// connect answers once the producer has been reached.
func (c *consumer) connect(args []uint64) (rival.Answer, error) {
	if len(args) != 1 || c.taking != nil {
		return rival.Answer{}, errors.New("want: connect N, one at a time")
	}
	ctx, cancel := bounded()
	c.cancel, c.taking = cancel, make(chan taken, 1)
	connected, taking := make(chan struct{}), c.taking
	go func() { taking <- c.attach(ctx, args[0], func() { close(connected) }) }()
	select {
	case <-connected:
		return rival.Answer{}, nil
	case t := <-taking:
		taking <- t
		return rival.Answer{}, t.err
	}
}

// take waits, within its bounds, for what connect began.
func (c *consumer) take() taken {
	if c.taking == nil {
		return taken{err: errors.New("there was no connect")}
	}
	t := <-c.taking
	c.cancel()
	c.taking = nil
	return t
}

func (c *consumer) finish([]uint64) (rival.Answer, error) {
	t := c.take()
	if t.err != nil {
		return rival.Answer{}, t.err
	}
	return c.letGo(t)
}

// letGo checks what was taken, and lets go of it.
func (c *consumer) letGo(t taken) (rival.Answer, error) {
	ctx, cancel := bounded()
	defer cancel()
	fault := c.check(t.att.Buffer(), t.n)
	reported := t.att.Report(ctx, fault)
	return rival.Answer{}, errors.Join(fault, reported, t.att.Close())
}

// giveUp answers why attaching failed, if it did.
func (c *consumer) giveUp([]uint64) (rival.Answer, error) {
	if c.taking == nil { // it has finished
		return rival.Answer{}, nil
	}
	c.cancel()
	t := c.take()
	return rival.Answer{}, errors.Join(t.err, t.att.Close())
}

// attach takes offer n, and calls connected on the way.
func (c *consumer) attach(ctx context.Context, n uint64, connected func()) taken {
	t := taken{n: n}
	t.att, t.err = share.Attach(ctx, c.path, offerName(n), c.dev, &share.AttachOptions{OnConnected: func(sock.Peer) { connected() }})
	return t
}

// check looks for the salt at both ends of the memory.
func (c *consumer) check(buf *vmm.Buffer, n uint64) error {
	salt := saltOf(n)
	for _, at := range []uint64{0, buf.Size() - 8} {
		var got [1]uint64
		if err := cu.CopyToHost(c.ctx, got[:], buf.Ptr().Add(at)); err != nil {
			return err
		}
		if got[0] != salt {
			return fmt.Errorf("at offset %d: %#x instead of %#x", at, got[0], salt)
		}
	}
	return nil
}
