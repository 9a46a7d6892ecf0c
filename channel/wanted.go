package channel

import (
	"cmp"
	"context"

	"github.com/gpufd/gpufd/internal/plain"
)

// This file has what hosts tell one another beside the frames.

// tell tells the readers that keep the writer waiting that a slot is wanted, or that none is any more. They are pinned.
func (w *Writer) tell(wanted bool) {
	for _, m := range w.asked {
		if !wanted {
			m.store(offWanted, 0)
			continue
		}
		m.store(offWanted, m.published+1)
		m.ring(offReaderBell)
	}
}

// isGone reports whether the reader is given nothing any more.
func (m *member) isGone() bool { return m.gone.Load() }

// Noted returns the numbers that the readers which are there noted last ([Reader.Note]), in no order; 0 is that of a reader that
// noted none.
func (w *Writer) Noted() (numbers []uint64) {
	if w.isZero() {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.readers {
		numbers = append(numbers, m.load(offNoted))
	}
	return numbers
}

// Note tells the writer a number of the application's own, such as that of the last version which it has taken up. The
// writer's application finds it with [Writer.Noted], also after this side was killed ([Gone]).
//
// Errors: [ErrClosed].
func (r *Reader) Note(number uint64) error {
	if err := r.use(); err != nil {
		return err
	}
	defer r.using.RUnlock()
	r.store(offNoted, number)
	r.ring(offWriterBell)
	return nil
}

// AwaitWanted waits until the writer's host waits for this reader to give a slot back, ctx or the channel ends. So a
// reader keeps a frame for as long as nobody needs its slot, which in a channel of one slot is until the next frame is
// to be written. Other goroutines take and release frames meanwhile; a frame that they take does not count. A Next that
// waits meanwhile may hear of its frame up to 10 ms later, because both sleep at one bell. A writer whose stream waits
// ([Writer.AcquireOn]) does not say so.
//
// Errors: those of [Reader.Next], but for ErrOrder.
func (r *Reader) AwaitWanted(ctx context.Context) error {
	if err := plain.ContextErr(ctx); err != nil {
		return err
	}
	if err := r.use(); err != nil {
		return err
	}
	defer r.using.RUnlock()
	kept := r.taken.Load()
	_, err := waiting{words: r.words, bell: offReaderBell}.await(ctx, func() (bool, error) {
		if err := cmp.Or(r.isOpen(), r.dropped()); err != nil {
			return false, err
		}
		if r.load(offWanted) > kept {
			return true, nil
		}
		if r.writer.lost.Load() {
			return false, r.writer.why
		}
		return false, nil
	})
	return err
}
