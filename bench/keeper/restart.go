package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/kernels"
	"github.com/gpufd/gpufd/share"
)

const (
	restart = "from exec to serving"
	quiet   = "a reader's kernel"
	shaken  = "the same while keepers die"
	// once is how much one kernel of the reader reads.
	once = 4 << 30
	// pause lies between two deaths, so that the reader is back before the next.
	pause = 50 * time.Millisecond
)

// measureRestarts kills the keeper that serves at socket again and again, under a reader whose
// kernels read what is kept, and which is back before the next death.
func measureRestarts(ctx context.Context, dev *cu.Device, k *keeperProcess, kills int) (s samples, err error) {
	a, err := share.Attach(ctx, k.socket, name, dev, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	r, err := newReader(ctx, dev, a)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	s = samples{}
	if s[quiet], err = r.run(ctx, func() error { return sleep(ctx, time.Duration(kills)*pause) }); err != nil {
		return nil, err
	}
	s[shaken], err = r.run(ctx, func() error {
		for range kills {
			took, err := k.restart()
			if err != nil {
				return err
			}
			s[restart] = append(s[restart], float64(took.Nanoseconds()))
			if a, err = resumed(ctx, a); err != nil {
				return err
			}
			if err := sleep(ctx, pause); err != nil {
				return err
			}
		}
		return nil
	})
	return s, err
}

// resumed takes the lease again after its keeper has died.
func resumed(ctx context.Context, a *share.Attachment) (*share.Attachment, error) {
	select {
	case <-a.Done():
	case <-ctx.Done():
		return a, context.Cause(ctx)
	}
	next, err := a.Resume(ctx)
	if err != nil {
		return a, fmt.Errorf("resuming the lease: %w", err)
	}
	return next, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// A reader runs kernels that read the memory.
type reader struct {
	on   *cu.Context
	set  *kernels.Set
	at   cu.DevicePtr
	size uint64
	want uint64 // the checksum
}

func newReader(ctx context.Context, dev *cu.Device, a *share.Attachment) (r *reader, err error) {
	r = &reader{at: a.Buffer().Ptr(), size: min(a.Buffer().Size(), once)}
	if r.on, err = dev.PrimaryContext(); err != nil {
		return nil, err
	}
	if r.set, err = kernels.Load(r.on); err == nil {
		r.want, err = r.sum(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (r *reader) sum(ctx context.Context) (uint64, error) {
	return r.set.Checksum(ctx, r.on.NullStream(), r.at, r.size)
}

func (r *reader) close() error { return errors.Join(r.set.Close(), r.on.Close()) }

// run runs kernels one after the other while f runs, and returns how long each took. Bytes
// other than the first time's are an error.
func (r *reader) run(ctx context.Context, f func() error) (ns []float64, err error) {
	done := make(chan error, 1)
	go func() { done <- f() }()
	for {
		begin := time.Now()
		sum, err := r.sum(ctx)
		if err == nil && sum != r.want {
			err = fmt.Errorf("the checksum is %#x, and was %#x", sum, r.want)
		}
		if err != nil {
			return nil, errors.Join(err, <-done)
		}
		ns = append(ns, float64(time.Since(begin).Nanoseconds()))
		select {
		case err := <-done:
			return ns, err
		default:
		}
	}
}
