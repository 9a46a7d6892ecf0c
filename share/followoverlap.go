package share

import (
	"context"
	"slices"
)

// overlap gives the attachment to the body of the loop, and waits until there is something newer. more
// says whether the body wants that.
func (f *following) overlap(ctx context.Context, att *Attachment, yield func(*Attachment, error) bool) (more bool, err error) {
	f.lent = slices.DeleteFunc(f.lent, func(a *Attachment) bool { return a.line.Load().isClosed() })
	f.lent = append(f.lent, att)
	if !yield(att, nil) {
		return false, nil
	}
	return true, f.await(ctx, att)
}
