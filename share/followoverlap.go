package share

import (
	"context"
	"slices"

	"github.com/gpufd/gpufd/internal/plain"
)

// WithOverlap makes [Follow] map each version beside the one before, instead of after it. The body
// takes the attachment over and returns; Follow calls it again when there is newer memory. So a
// server warms the new version up and checks it, swaps, and closes the old one when no request uses
// it any more:
//
//	for att, err := range share.Follow(ctx, path, "weights", dev, share.WithOverlap()) {
//		if err != nil {
//			return err
//		}
//		if err := check(att); err != nil {
//			log.Print(err, att.Close()) // refused: the server goes on with the old one
//			continue
//		}
//		go drain(current.Swap(att)) // closes the old one when its last request is done
//	}
//
// A version that the body has closed is not given again. The [Attachment.Context] of an older one
// goes on when it is superseded. Follow closes what the body has not closed when the loop ends, so
// nothing may use the memory any more then: after the loop's last pair, which is the error. [Attach] ignores this option; it cannot be used
// [WithReservation], where there is room for one.
func WithOverlap() AttachOption { return attachOption(func(o *attachOptions) { o.overlaps = true }) }

// lent is an attachment that the body of Follow has, WithOverlap.
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

// closeLent closes what the body has not.
func (f *following) closeLent() {
	for _, l := range f.lent {
		l.unlink()
		_ = l.Close()
	}
}
