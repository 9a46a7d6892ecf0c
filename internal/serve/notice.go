package serve

import (
	"context"
	"fmt"

	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/internal/wire"
)

// MaxNotice is the longest notice, in bytes.
const MaxNotice = 4096

// maxNotices is how many notices are kept until they are taken.
const maxNotices = 16

// Notify sends the consumer up to MaxNotice bytes of the application's own, which it gets from
// Attachment.Notices, even before it has the memory.
func (l *Lease) Notify(ctx context.Context, b []byte) error {
	if err := plain.ContextErr(ctx); err != nil {
		return err
	}
	if l.isZero() {
		return errNoLease
	}
	if err := l.Err(); err != nil {
		return err
	}
	if err := l.over(); err != nil {
		return err
	}
	return l.transport.Notify(ctx, b)
}

// Notices returns the channel of what the consumer sends with Attachment.Notify.
func (l *Lease) Notices() <-chan []byte {
	if l.isZero() {
		return nil
	}
	return l.transport.Notices
}

func (t *Transport) Notify(ctx context.Context, b []byte) error {
	if len(b) > MaxNotice {
		return fmt.Errorf("share: a notice of %d bytes; %d are allowed", len(b), MaxNotice)
	}
	return t.Send(ctx, wire.Notice{Data: b})
}

// NoteNotice queues a notice, in place of the oldest if there is no room. Only the
// goroutine that receives calls it.
func (t *Transport) NoteNotice(b []byte) {
	for {
		select {
		case t.Notices <- b:
			return
		default:
		}
		select {
		case <-t.Notices:
		default:
		}
	}
}
