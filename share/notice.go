package share

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

// Notify sends the consumer up to [MaxNotice] bytes of the application's own, which it gets
// from [Attachment.Notices], even before it has the memory. Notify returns when they are
// sent, and waits while the consumer's queue is full. An older consumer ignores them. A
// consumer refuses too many records per second ([WithRecordRate]). Once the lease has
// ended, Notify returns [Lease.Err].
func (l *Lease) Notify(ctx context.Context, b []byte) error {
	if err := plain.ContextErr(ctx); err != nil {
		return err
	}
	if l.isZero() {
		return ErrClosed
	}
	if err := l.Err(); err != nil {
		return err
	}
	if err := l.over(); err != nil {
		return revoked(err)
	}
	return l.transport.notify(ctx, b)
}

// Notices returns the channel of what the consumer sends with [Attachment.Notify]. It holds
// 16 notices; then the oldest are dropped. The channel is never closed: Done says when the
// lease has ended, and earlier notices can still be taken then.
func (l *Lease) Notices() <-chan []byte {
	if l.isZero() {
		return nil
	}
	return l.transport.notices
}

func (t *transport) notify(ctx context.Context, b []byte) error {
	if len(b) > MaxNotice {
		return fmt.Errorf("share: a notice of %d bytes; %d are allowed", len(b), MaxNotice)
	}
	return t.send(ctx, wire.Notice{Data: b})
}

// noteNotice queues a notice, in place of the oldest if there is no room. Only the
// goroutine that receives calls it.
func (t *transport) noteNotice(b []byte) {
	for {
		select {
		case t.notices <- b:
			return
		default:
		}
		select {
		case <-t.notices:
		default:
		}
	}
}
