package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/gpufd/gpufd/bench/internal/program"
	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/share"
)

// patience bounds every step.
const patience = time.Minute

// offerName is what the memory is offered under.
const offerName = "weights"

// An engine detaches from memory of its producer and reattaches to it whenever it is asked.
type engine struct {
	dev      *cu.Device
	ctx      *cu.Context
	dir      string // of the socket
	producer *rival.Rival
	shape    shape
	att      *share.Attachment // nil until there is memory
}

func beEngine(driver string, stdin io.Reader, stdout io.Writer) error {
	e := &engine{}
	err := e.open(driver)
	if err == nil {
		hello := rival.Answer{Name: "gpufd", Info: e.dev.Driver().String()}
		err = rival.Serve(stdin, stdout, hello, map[string]rival.Handler{"remap": e.remap})
	}
	return errors.Join(err, e.close())
}

// open opens the device and starts the producer.
func (e *engine) open(driver string) (err error) {
	if e.dir, err = os.MkdirTemp("", "gpufd-bench-"); err != nil {
		return err
	}
	if e.dev, e.ctx, err = program.Device(driver, 0); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	e.producer, err = rival.Start(ctx, "producer", self, "-as", "producer", "-driver", driver, "-socket", e.socket())
	return err
}

func (e *engine) socket() string { return filepath.Join(e.dir, "sock") }

func (e *engine) close() error {
	err := e.att.Close()
	if e.producer != nil {
		err = errors.Join(err, e.producer.Close())
	}
	return errors.Join(err, e.ctx.Close(), os.RemoveAll(e.dir))
}

// remap COUNT SIZE
func (e *engine) remap(args []uint64) (rival.Answer, error) {
	if len(args) != 2 {
		return rival.Answer{}, errors.New("want: remap COUNT SIZE")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if want := (shape{args[0], args[1]}); e.shape != want {
		if err := e.take(ctx, want); err != nil {
			return rival.Answer{}, err
		}
	}
	detach, reattach, err := e.round(ctx)
	return rival.Answer{Each: []int64{reattach.Nanoseconds(), detach.Nanoseconds()}}, err
}

// take attaches to memory of another shape.
func (e *engine) take(ctx context.Context, want shape) error {
	if err := e.att.Close(); err != nil {
		return err
	}
	e.att, e.shape = nil, shape{}
	if _, err := e.producer.Ask(ctx, "offer %d %d", want.count, want.size); err != nil {
		return err
	}
	att, err := share.Attach(ctx, e.socket(), offerName, e.dev, nil)
	if err != nil {
		return err
	}
	e.att, e.shape = att, want
	return e.check()
}

// round detaches and reattaches once.
func (e *engine) round(ctx context.Context) (detach, reattach time.Duration, err error) {
	at := e.att.Ptr()
	begin := time.Now()
	kept, err := e.att.Detach(ctx, 0)
	detach = time.Since(begin)
	if err == nil && !kept {
		err = errors.New("the lease was not kept")
	}
	if err != nil {
		return 0, 0, err
	}
	begin = time.Now()
	next, err := e.att.Reattach(ctx, share.Same)
	reattach = time.Since(begin)
	if err != nil {
		return 0, 0, err
	}
	e.att = next
	if now := e.att.Ptr(); now != at {
		return 0, 0, fmt.Errorf("the memory is at %s now, and was at %s", now, at)
	}
	return detach, reattach, e.check()
}

// check reads the last byte of each chunk.
func (e *engine) check() error {
	got := make([]byte, 1)
	for i := range e.shape.count {
		if err := cu.CopyToHost(e.ctx, got, e.att.Ptr().Add((i+1)*e.shape.size-1)); err != nil {
			return err
		}
		if got[0] != pattern(i) {
			return fmt.Errorf("chunk %d has %#x and should have %#x", i, got[0], pattern(i))
		}
	}
	return nil
}
