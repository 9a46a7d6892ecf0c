package channel

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/share"
)

// Open attaches to the channel of that name at path, and joins it. It does not wait for a first
// frame. ctx bounds the attaching and joining. The context c is of the device that reads, which is
// the one that the frames are on or has peer access to it. c may be closed before the reader.
//
// Errors: those of [share.Attach], such as [share.ErrNoPeer] if the device cannot reach the frames;
// [ErrNoChannel]; [ErrPolicy] if the channel admits no reader of that policy, or no more readers;
// [ErrCursor].
func Open(ctx context.Context, path, name string, c *cu.Context, opts ...ReaderOption) (*Reader, error) {
	o, err := newReaderOptions(opts)
	if err != nil {
		return nil, err
	}
	if c == nil {
		return nil, errors.New("channel: no context for a reader (nil)")
	}
	att, err := share.Attach(ctx, path, name, c.Device(), o.attaching())
	if err != nil {
		return nil, err
	}
	r, err := join(ctx, att, c, o)
	if err != nil {
		return nil, errors.Join(err, att.CloseNow())
	}
	r.owns = true
	return r, nil
}

// attaching are the options that a reader attaches with.
func (o *readerOptions) attaching() *share.AttachOptions {
	a := o.attach
	a.MaxCursors, a.PeerAccess = maxCursorSize, true
	return &a
}

// Follow yields one reader for each writer that listens at path, one after the other. When a
// writer has ended or died, its reader yields no more frames, and Follow yields the reader of
// the next writer. The loop's body uses the reader until it returns; then Follow closes it. While Close
// returns [ErrInUse], Follow tries again until ctx ends, and then yields that error. When the body breaks out of the loop or panics,
// Follow calls Close once, and its error is lost. Close of the reader may be called again, which returns nil if the
// memory is closed.
// [share.Follow] says what Follow waits for and what ends it.
//
// A body returns to the loop, for the next reader, when [Reader.Next] fails with [ErrEnded] or [ErrLost]: the
// writer has gone, and a frame that is published later is another writer's. With [ErrDropped] it was too
// slow, or the writer's server was closed; the loop's next reader joins who writes then. Each writer counts its frames from 1.
func Follow(ctx context.Context, path, name string, c *cu.Context, opts ...ReaderOption) iter.Seq2[*Reader, error] {
	return func(yield func(*Reader, error) bool) {
		o, err := newReaderOptions(opts)
		if err == nil && c == nil {
			err = errors.New("channel: no context for a reader (nil)")
		}
		if err != nil {
			yield(nil, err)
			return
		}
		for att, err := range share.Follow(ctx, path, name, c.Device(), o.attaching()) {
			if err != nil {
				yield(nil, err)
				return
			}
			r, err := join(ctx, att, c, o)
			if isPassing(err) {
				continue
			}
			if err != nil {
				yield(nil, err)
				return
			}
			more, err := r.lend(ctx, yield)
			if err != nil && more {
				yield(nil, err)
			}
			if !more || err != nil {
				return
			}
		}
	}
}

// lend gives the reader to the body of the loop, and closes it, even if the body panics. It waits for the memory only
// if the body wants the next reader.
func (r *Reader) lend(ctx context.Context, yield func(*Reader, error) bool) (more bool, err error) {
	defer func() {
		if more {
			err = r.closeUntil(ctx)
		} else {
			err = r.Close()
		}
	}()
	return yield(r, nil), nil
}

// closeUntil closes the reader. While its memory is in use it tries again until ctx ends, and says once that it waits,
// as [share.Follow] does.
func (r *Reader) closeUntil(ctx context.Context) error {
	say := r.opts.attach.OnWait
	begin := time.Now()
	for pause := sleepMax; ; pause = min(2*pause, closeLimit/2) {
		err := r.Close()
		if !errors.Is(err, ErrInUse) {
			return err
		}
		if ended := plain.ContextErr(ctx); ended != nil {
			return errors.Join(ended, err)
		}
		if say != nil && time.Since(begin) >= closeLimit {
			say(fmt.Errorf("channel: the reader of the writer before cannot be closed yet: %w", err))
			say = nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// isPassing reports whether another writer may admit the reader.
func isPassing(err error) bool { return errors.Is(err, ErrEnded) || errors.Is(err, ErrLost) }

// join makes a reader of an attachment.
func join(ctx context.Context, att *share.Attachment, c *cu.Context, o *readerOptions) (r *Reader, err error) {
	if att.Cursors() == nil {
		return nil, fmt.Errorf("%w: %q has no cursors", ErrNoChannel, att.Offer().Name)
	}
	r = &Reader{opts: o, att: att, next: 1, done: make(chan struct{}), leaving: leaving{closed: make(chan struct{})}}
	if r.ctx, err = c.Retain(); err != nil {
		return nil, err
	}
	if err = r.open(); err == nil {
		err = r.ask(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, closeUnbegun(r.discard))
	}
	r.behind.Add(1)
	go r.watch()
	return r, nil
}

// open makes what a reader has on the device.
func (r *Reader) open() error {
	f := r.att.Cursors()
	size, err := f.Stat()
	if err != nil {
		return err
	}
	if size.Size() < minCursorSize || size.Size() > maxCursorSize {
		return fmt.Errorf("%w: cursors of %d bytes; want %d to %d", ErrCursor, size.Size(), minCursorSize, maxCursorSize)
	}
	if r.cursor, err = openCursor(r.ctx, f, uint64(size.Size())); err != nil {
		return err
	}
	if r.shape, err = readShape(r.words, r.att.Offer().Descriptor); err != nil {
		return err
	}
	if r.policy, err = r.acting(r.opts.policy); err != nil {
		return err
	}
	r.held.ring = make([]heldFrame, r.slots)
	letGo := r.leave
	if r.anyOrder { // no stream waits for a frame
		letGo = func() {}
	}
	r.track, err = newTracker(r.ctx, letGo)
	return err
}

// acting returns the policy by which this side orders frames with the writer when p is asked for.
func (s shape) acting(p Policy) (Policy, error) {
	if s.streams && p == Latest { // it gives back what it skips
		return Block, nil
	}
	return p, s.allows(p)
}

// ask tells the writer how this side wants to read, and waits to be admitted.
func (r *Reader) ask(ctx context.Context) error {
	r.store(offPolicy, uint64(r.policy))
	r.store(offJoin, uint64(r.opts.join))
	r.store(offReaderState, readerJoined)
	_, err := waiting{words: r.words, bell: offReaderBell, polls: offStart}.await(ctx, r.admitted)
	r.last = r.first - 1
	if r.first == 0 && err != nil && r.load(offWriterState) == writerRefused {
		select { // the writer says why in a moment
		case <-r.att.Done():
		case <-ctx.Done():
		case <-time.After(closeLimit):
		}
		return r.toldOf(writerRefused)
	}
	return err
}

// admitted reports whether the writer has admitted this side, or why it will not. A writer may end as
// soon as it has admitted a reader, so admitted looks at the end first.
func (r *Reader) admitted() (ok bool, err error) {
	select {
	case <-r.att.Done():
		err = r.toldOf(r.load(offWriterState))
	default:
		if state := r.load(offWriterState); state != writerOpen {
			err = r.toldOf(state)
		}
	}
	if r.first = r.load(offStart); r.first != 0 {
		return true, nil
	}
	return false, err
}
