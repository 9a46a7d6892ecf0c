package share

import (
	"context"
	"fmt"

	"github.com/gpufd/gpufd/share/internal/wire"
)

// MaxNotice is how many bytes a notice may have.
const MaxNotice = 4096

// maxNotices is how many notices wait to be taken.
const maxNotices = 16

// Notify sends the consumer up to [MaxNotice] bytes of the application's own, which its
// [Attachment.Notices] gives; also before it has the memory. It returns when they are
// sent, which they are not before the consumer takes what it was sent earlier. A consumer
// that is older than this takes them for nothing. It refuses more than so many records a
// second ([WithRecordRate]). Errors: [Lease.Err] once the lease has ended.
func (l *Lease) Notify(ctx context.Context, b []byte) error {
	if l.isZero() {
		return ErrClosed
	}
	if err := l.Err(); err != nil {
		return err
	}
	if err := l.over(); err != nil {
		return l.why(err, false)
	}
	return l.transport.notify(ctx, b)
}

// Notices gives what the consumer sends by [Attachment.Notify]. 16 of them wait to be
// taken; then the oldest are dropped. It is not closed: Done says when the lease has
// ended, and what came before can be taken after that.
func (l *Lease) Notices() <-chan []byte {
	if l.isZero() {
		return nil
	}
	return l.transport.notices
}

// Notify is [Lease.Notify] to the producer.
func (a *Attachment) Notify(ctx context.Context, b []byte) error {
	if err := a.Err(); err != nil {
		return err
	}
	return a.ended(a.transport.notify(ctx, b))
}

// Notices is [Lease.Notices] from the producer.
func (a *Attachment) Notices() <-chan []byte {
	if a.isZero() {
		return nil
	}
	return a.transport.notices
}

func (t *transport) notify(ctx context.Context, b []byte) error {
	if len(b) > MaxNotice {
		return fmt.Errorf("share: a notice of %d bytes; %d are allowed", len(b), MaxNotice)
	}
	return t.send(ctx, wire.Notice{Data: b})
}

// noteNotice queues a notice, in place of the oldest if there is no room. It is called
// by who receives, one at a time.
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
