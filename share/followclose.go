package share

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gpufd/gpufd/internal/plain"
)

// letGo closes what the body had. While the memory is in use it tries again until ctx ends, and says that it waits.
// The last try takes [cu.WithCloseLimit].
func (f *following) letGo(ctx context.Context, att *Attachment) error {
	t := newTeller(att.opts.OnWait, errStillUsed)
	defer t.stop()
	for pause := followMin; ctx.Err() == nil; pause = min(2*pause, followMax) {
		err := att.Release(ctx)
		if !errors.Is(err, ErrInUse) && plain.ContextErr(ctx) == nil {
			return err
		}
		if err != nil {
			t.note(fmt.Errorf("%w: %w", errStillUsed, err))
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	return closeOrAbandon(att)
}

var errStillUsed = plain.ErrorOf("share: the memory of the version before is still in use here", ErrInUse)

// closeOrAbandon closes an attachment, or ends its lease if its memory is in use. Then Close unmaps it later.
func closeOrAbandon(att *Attachment) error {
	err := att.Close()
	if err != nil {
		att.abandon()
	}
	return err
}

// closeLine closes an attachment by a function, or the one that took its place by Reattach.
func closeLine(att *Attachment, end func(*Attachment) error) error {
	for {
		last := att.line.Load()
		if err := end(last); last == att.line.Load() {
			return err
		}
	}
}

// closeLent closes what the body has not.
func (f *following) closeLent() {
	var closing sync.WaitGroup
	for _, att := range f.lent {
		closing.Go(func() { _ = closeLine(att, closeOrAbandon) })
	}
	closing.Wait()
}
