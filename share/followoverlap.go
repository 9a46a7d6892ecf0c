package share

import (
	"context"
	"slices"

	"github.com/gpufd/gpufd/internal/plain"
)

// lent is an attachment that the body of Follow has, with Overlap.
type lent struct {
	*Attachment
	unlink func() bool // from Follow's context
}

// overlap gives the attachment to the body of the loop, and waits until there is something newer. more
// says whether the body wants that.
func (f *following) overlap(ctx context.Context, att *Attachment, yield func(*Attachment, error) bool) (more bool, err error) {
	f.lent = slices.DeleteFunc(f.lent, lent.isDropped)
	f.lent = append(f.lent, lent{att, context.AfterFunc(ctx, func() { att.cancel(plain.ContextErr(ctx)) })})
	if !yield(att, nil) {
		return false, nil
	}
	select {
	case <-att.Done():
	case <-att.Superseded():
	case <-ctx.Done():
		return true, plain.ContextErr(ctx)
	}
	f.know(att)
	return true, nil
}

// isDropped reports whether the body has closed the attachment, and forgets it then.
func (l lent) isDropped() bool {
	if !l.isClosed() {
		return false
	}
	l.unlink()
	return true
}
