package share

import (
	"context"
	"errors"
	"sync"

	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/vmm"
)

// A Current is the version of some memory that requests use while the next one comes: the loop of
// [Follow] with Overlap swaps, and requests use. What is in use stays mapped ([vmm.Buffer.Hold]), whoever
// closes it. The zero Current has no attachment. It is safe for concurrent use.
//
//	var current share.Current
//	http.HandleFunc("/infer", func(w http.ResponseWriter, r *http.Request) {
//		att, done := current.Use()
//		defer done()
//		answer(w, r, att) // nil before the first version
//	})
type Current struct {
	mu   sync.Mutex
	now  *version
	old  int           // versions that are replaced, and whose closing has not ended
	idle chan struct{} // closed when there is none; nil if nobody waits for that
	left []*Attachment // that could not be closed; close and Close try again
}

type version struct {
	att      *Attachment
	hold     *vmm.Hold
	uses     int
	replaced bool
}

// Use returns the current attachment, or nil if there is none, and a function that ends its use, which may be
// called again. The memory stays mapped until then.
func (c *Current) Use() (att *Attachment, done func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.now
	if v == nil {
		return nil, func() {}
	}
	v.uses++
	return v.att, sync.OnceFunc(func() { c.done(v) })
}

func (c *Current) done(v *version) {
	c.mu.Lock()
	v.uses--
	unused := v.replaced && v.uses == 0
	c.mu.Unlock()
	if unused {
		go c.close(v)
	}
}

// Swap makes att the current attachment, which belongs to c from now on. The one before is closed when its
// last use has ended, on a goroutine that waits for queued work; if that fails, because it is still in use, offered on
// or held by others, it keeps its memory, and is closed behind the next that is replaced, or by Close. An attachment that cannot be held stays the caller's: one that is closed ([ErrClosed]),
// detached, or of legacy memory ([ErrHandle]).
func (c *Current) Swap(att *Attachment) error {
	if att.isZero() || att.isClosed() {
		return errClosed
	}
	buf := att.Buffer()
	if buf == nil {
		return ErrHandle
	}
	hold, err := buf.Hold("share.Current")
	if err != nil {
		return err
	}
	if !c.replace(&version{att: att, hold: hold}) {
		return hold.Close()
	}
	return nil
}

// replace makes next current, unless its attachment is.
func (c *Current) replace(next *version) bool {
	c.mu.Lock()
	before := c.now
	if before != nil && next != nil && before.att == next.att {
		c.mu.Unlock()
		return false
	}
	c.now = next
	unused := false
	if before != nil {
		c.old++
		before.replaced, unused = true, before.uses == 0
	}
	c.mu.Unlock()
	if unused {
		go c.close(before)
	}
	return true
}

// close closes a version that is replaced and not in use, and what could not be closed before. It may wait for queued
// work.
func (c *Current) close(v *version) {
	_ = v.hold.Close()
	all := append([]*Attachment{v.att}, c.takeLeft()...)
	var left []*Attachment
	for i, att := range all {
		err := att.Close()
		if errors.Is(err, context.DeadlineExceeded) { // the others would wait for the same work
			left = append(left, all[i:]...)
			break
		}
		if err != nil {
			left = append(left, att)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = append(c.left, left...)
	if c.old--; c.old == 0 && c.idle != nil {
		close(c.idle)
		c.idle = nil
	}
}

// Close leaves no attachment, and waits until those that there were are closed, because their last uses have
// ended. It tries once more to close those that could not be, and waits for work that uses them as long as ctx lasts. If ctx ends first, what is in use
// stays mapped until its use ends. The error is that of ctx, or of closing an attachment. Close may be called again. End
// the loop that swaps before: a Swap after Close makes an attachment current again.
func (c *Current) Close(ctx context.Context) error {
	c.replace(nil)
	if err := c.awaitIdle(ctx); err != nil {
		return err
	}
	var errs []error
	for _, att := range c.takeLeft() {
		if err := att.Release(ctx); err != nil {
			errs = append(errs, err)
			c.mu.Lock()
			c.left = append(c.left, att)
			c.mu.Unlock()
		}
	}
	return errors.Join(errs...)
}

// takeLeft returns what could not be closed. The caller tries again, and puts back what still cannot be.
func (c *Current) takeLeft() []*Attachment {
	c.mu.Lock()
	defer c.mu.Unlock()
	left := c.left
	c.left = nil
	return left
}

// awaitIdle waits until nothing that was replaced is in use or being closed.
func (c *Current) awaitIdle(ctx context.Context) error {
	c.mu.Lock()
	if c.old > 0 && c.idle == nil {
		c.idle = make(chan struct{})
	}
	idle := c.idle
	c.mu.Unlock()
	if idle == nil {
		return nil
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return plain.ContextErr(ctx)
	}
}
