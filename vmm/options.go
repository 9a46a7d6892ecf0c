package vmm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpufd/gpufd/cu"
)

// An Option changes how a buffer is made.
type Option func(*options)

type options struct {
	chunk    uint64
	capacity uint64
	access   cu.Access
	types    cu.HandleType // that memory is made for
	onStep   func(Step)
	mapped   func() error
	room     *Reservation
	wait     context.Context // nil does not wait
}

func newOptions(opts []Option) *options {
	o := &options{access: cu.ReadWrite, types: cu.HandleFD, mapped: func() error { return nil }}
	for _, f := range opts {
		f(o)
	}
	return o
}

// WithChunkSize makes the buffer of chunks of size bytes, rounded up to the
// granularity, at most [MaxChunks] of them. Without it a buffer is one chunk.
// Each chunk costs an export and a descriptor when shared.
func WithChunkSize(size uint64) Option { return func(o *options) { o.chunk = size } }

// WithCapacity reserves address space for size bytes, into which the buffer can
// grow without moving.
func WithCapacity(size uint64) Option { return func(o *options) { o.capacity = size } }

// WithAccess sets what the memory's device may do with the buffer here. The
// default is read-write.
func WithAccess(a cu.Access) Option { return func(o *options) { o.access = a } }

// WithSteps has f told of each step when it is done, on the goroutine that
// makes the buffer; those of Grow and Export when they have let go of it.
func WithSteps(f func(Step)) Option { return func(o *options) { o.onStep = f } }

// WithMapped has f called as soon as the memory is mapped and access to it set:
// what is left of [New] or [Import] then, of which closing descriptors takes
// longest, cannot fail. An error of f undoes the making and is returned.
func WithMapped(f func() error) Option { return func(o *options) { o.mapped = f } }

// WithReservation maps the buffer at the beginning of r, which becomes the
// buffer's, whatever comes of it: Close of the buffer frees it, and so does a
// failure. One that is too small gives [ErrCapacity], one that is in use
// [ErrOccupied]; one with room to spare leaves it unused. To reserve takes some
// of the time of [Import], and can be done before there is anything to import.
func WithReservation(r *Reservation) Option { return func(o *options) { o.room = r } }

// roomFor checks the reservation that was given.
func (o *options) roomFor(size uint64) error {
	if o.room != nil && o.room.Size() < size {
		return fmt.Errorf("%w: a reservation of %d bytes for a buffer of %d", ErrCapacity, o.room.Size(), size)
	}
	return nil
}

// giveUp lets go of the reservation where err keeps a buffer from being made.
func (o *options) giveUp(err error) error { return errors.Join(err, o.room.Close()) }

// A Step is a part of making a buffer that has been done.
type Step struct {
	Op     string        // "wait", "create", "import", "reserve", "map", "access" or "export"
	Ptr    cu.DevicePtr  // address concerned, or 0
	Size   uint64        // bytes concerned
	Chunks int           // chunks concerned, or 0
	Access cu.Access     // for "access"
	FD     int           // for "export": the first descriptor that was made
	Took   time.Duration // how long it took
}

// later returns options whose steps are told of when tell is called, which is
// for work done under locks that f may want too.
func (o *options) later() (held *options, tell func()) {
	var steps []Step
	c := *o
	if o.onStep != nil {
		c.onStep = func(s Step) { steps = append(steps, s) }
	}
	return &c, func() {
		for _, s := range steps {
			o.onStep(s)
		}
	}
}

// step times one step and tells of it if it succeeded.
func (o *options) step(op string, f func(*Step) error) error {
	s := Step{Op: op}
	start := time.Now()
	err := f(&s)
	s.Took = time.Since(start)
	if err == nil && o.onStep != nil {
		o.onStep(s)
	}
	return err
}
