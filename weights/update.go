package weights

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/gpufd/gpufd/channel"
	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/plain"
)

// ErrTorn matches every [*TornError].
var ErrTorn = errors.New("weights: an update did not end whole")

// failedBit of the number that a reader notes says that it has not loaded the update whole.
const failedBit = 1 << 63

// errLeft says that the loop over the tensors has not come to the end.
var errLeft = errors.New("weights: tensors of the update are left; take all that Tensors yields")

// errClosed says that the body of Follow's loop has returned.
var errClosed = plain.ErrorOf("weights: the turn of the update is over; use an update within the turn of Follow's loop that yields it", gpumem.ErrClosed)

// A TornError says that an update did not end whole. Weights of which a part was loaded are of two steps, until a whole
// update has been loaded.
type TornError struct {
	Number uint64 // of the update
	Step   int64
	Err    error // why: the publisher gave up, died or wrote nonsense, say
}

// Error names the step.
func (e *TornError) Error() string {
	return fmt.Sprintf("%v: step %d (update %d): %v; load a whole update before the weights are used", ErrTorn, e.Step, e.Number, e.Err)
}

// Unwrap returns why.
func (e *TornError) Unwrap() error { return e.Err }

// Is matches [ErrTorn].
func (e *TornError) Is(target error) bool { return target == ErrTorn }

// An Update is the weights of one step, bucket by bucket. It belongs to the body of [Follow]'s loop until that returns. One
// goroutine at a time uses it.
type Update struct {
	Number   uint64 // counted by the publisher, from 1
	Step     int64  // the trainer's own number
	Metadata *Metadata

	s       *subscription
	buckets []*heldBucket // those that may not have been given back
	next    int           // tensor of the last bucket that is given next
	last    bool          // it is that of the last bucket
	whole   bool          // all of its tensors were given, and it ended whole
	err     error         // why it is torn
	wait    error         // with which Tensors ended last, if the update goes on
	ended   bool          // the body has returned
}

// Tensors yields the tensors of the update in the order in which they were sent. It waits for each bucket, and one
// that has no more tensors goes back to the publisher. A tensor that is larger than a bucket comes in several pieces, one
// behind the other.
//
// When the loop ends without an error, the update is whole. Otherwise its last pair is the error: a [*TornError];
// what ended ctx; [channel.ErrOrder] if tensors are kept in all buckets of the channel ([Tensor.Hold]); [channel.ErrClosed] if the turn
// of Follow's loop is over. After the errors of ctx and order, and after a body that left the loop, Tensors may be called again, and goes on
// with the next tensor.
func (u *Update) Tensors(ctx context.Context) iter.Seq2[Tensor, error] {
	return func(yield func(Tensor, error) bool) {
		for {
			t, ok, err := u.step(ctx)
			if u != nil {
				u.wait = err
			}
			if err != nil {
				yield(Tensor{}, err)
				return
			}
			if !ok || !yield(t, nil) {
				return
			}
		}
	}
}

// Err returns nil if the update is whole: the loop over [Update.Tensors] has come to its end. Otherwise it returns the error
// that Tensors yielded last, or says that tensors are left. Behind the turn of [Follow]'s loop it says, too, whether tensors that were
// kept stayed whole until they went back.
func (u *Update) Err() error {
	switch {
	case u == nil || u.s == nil:
		return errClosed
	case u.whole:
		return nil
	}
	return cmp.Or(u.err, u.wait, errLeft)
}

// step returns the next tensor. It is not ok behind the last one of an update that is whole.
func (u *Update) step(ctx context.Context) (t Tensor, ok bool, err error) {
	if err := cmp.Or(plain.ContextErr(ctx), u.isOpen()); err != nil {
		return t, false, err
	}
	for u.err == nil && !u.whole {
		h := u.buckets[len(u.buckets)-1]
		if u.next < len(h.entries) {
			u.next++
			return h.tensor(u.next - 1), true, nil
		}
		if err := h.drop(); err != nil { // the publisher may have used the slot already
			u.tear(err)
		} else if u.last {
			u.whole = true
		} else if err := u.await(ctx); err != nil {
			return t, false, err
		}
	}
	return t, false, u.err
}

func (u *Update) isOpen() error {
	if u == nil || u.s == nil || u.ended {
		return errClosed
	}
	return nil
}

// await waits for the next bucket, or for what tears the update.
func (u *Update) await(ctx context.Context) error {
	f, err := u.s.next(ctx)
	if err != nil {
		if u.s.over || u.s.fatal != nil {
			u.tear(err)
			return nil
		}
		return err
	}
	b, torn, belongs, err := u.s.place(f)
	switch {
	case err != nil:
		u.tear(err)
	case torn && belongs:
		u.s.ahead = f
		u.tear(fmt.Errorf("update %d (step %d) began within it", b.number, b.step))
	case torn:
		gap := fmt.Errorf("bucket %d of update %d came in the place of its next bucket", b.index, b.number)
		u.tear(errors.Join(gap, u.s.r.Release(*f)))
	default:
		_ = u.take(f, &b) // which tears it
	}
	return nil
}

// take accepts a frame of this update.
func (u *Update) take(f *channel.Frame, b *bucket) error {
	t, err := u.s.accept(f, b)
	if err != nil {
		u.tear(err)
		return err
	}
	h := &heldBucket{r: u.s.r, frame: *f}
	if t != nil {
		h.entries = t.entries
	}
	u.buckets = append(slices.DeleteFunc(u.buckets, (*heldBucket).isBack), h)
	u.next, u.last = 0, b.last
	if b.givenUp {
		u.tear(errors.New("the publisher gave it up"))
	}
	return nil
}

func (u *Update) tear(why error) {
	u.s.assembly.tear()
	u.whole = false
	u.err = &TornError{u.Number, u.Step, why}
}

// AwaitWanted waits until the publisher waits for a bucket of which a tensor is kept ([Tensor.Hold]), until it has ended, or until
// ctx ends. Weights in place ([Metadata]) can be used until then: keep them, let the device finish, and return to
// Follow's loop.
func (u *Update) AwaitWanted(ctx context.Context) error {
	if err := cmp.Or(plain.ContextErr(ctx), u.isOpen()); err != nil {
		return err
	}
	return u.s.r.AwaitWanted(ctx)
}

// end gives back what the body has, and tells the publisher whether that has loaded the update whole. If the body leaves the loop,
// end tells the publisher only of an update that was loaded whole.
func (u *Update) end(goesOn bool) {
	u.ended = true
	for _, h := range u.buckets {
		if err := h.giveBack(); err != nil && u.err == nil {
			u.tear(err)
		}
	}
	u.s.assembly.tear()
	number := u.Number
	switch {
	case u.whole:
	case goesOn:
		number |= failedBit
	default:
		return
	}
	_ = u.s.r.Note(number) // fails where the channel has ended
}
