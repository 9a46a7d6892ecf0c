package share

import (
	"context"

	"github.com/gpufd/gpufd/internal/plain"
)

// Notify is [Lease.Notify] to the producer.
func (a *Attachment) Notify(ctx context.Context, b []byte) error {
	if err := plain.ContextErr(ctx); err != nil {
		return err
	}
	if err := a.over(); err != nil {
		return err
	}
	t := a.now.Load()
	return t.ended(t.transport.Notify(ctx, b))
}

// Notices is [Lease.Notices] from the producer.
func (a *Attachment) Notices() <-chan []byte {
	if a.isZero() {
		return nil
	}
	return a.now.Load().transport.Notices
}
