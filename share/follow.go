package share

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"sync"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// Follow is [Attach] again and again: it ranges over the memory that is offered under a
// name, whichever process offers it, and waits where there is none.
//
//	for att, err := range share.Follow(ctx, path, "weights", dev, nil) {
//		if err != nil {
//			return err
//		}
//		serve(att.Context(), att)
//	}
//
// A body that is told to let go leaves the loop. One that returns to it is given what is offered next, also
// after its lease was revoked:
//
//	switch why := context.Cause(att.Context()); {
//	case errors.Is(why, share.ErrRevoked): // it alone was meant
//		return why
//	case errors.Is(why, share.ErrWithdrawn): // the name is given up; or wait for another
//		return nil
//	}
//
// Each attachment is of newer memory than the one before, or of a producer that came
// back. Its [Attachment.Context] ends when ctx does, when the producer offers something
// newer ([ErrSuperseded]), or when it takes the memory back ([ErrWithdrawn], [ErrRevoked]). It
// goes on while the producer is lost or restarting ([ErrRestarting]), for as long as the body
// likes or [AttachOptions].MaxAbsence says: what is mapped stays good.
//
// When a producer offers the same memory again, the attachment takes a lease of it there, as
// [Attachment.Resume] does. Its mapping, Context, Done, Err, Superseded and Notices go on;
// [Attachment.Offer] gives the new producer and its data. OnConnected, OnReceived and
// OnProgress are not called for such a lease. Until there is one, Notify, Progress and Report
// return why the last one ended, and Fenced and AwaitFence are about its producer. The Context
// ends with the lease if the producer waits for the memory ([OfferOptions].Fence).
//
// The memory stays mapped until the loop's body has returned and its Context has ended, in
// either order. Then Follow closes the attachment, which waits for work that was queued, and tries again until ctx ends:
// the address may be wanted for what comes next. When ctx has ended, or the body breaks out, it tries once, which takes as
// long as Close waits ([cu.WithCloseLimit]). A body that has closed the attachment itself, or given its verdict, next gets only
// memory of a larger generation. A body that breaks out of the loop does not learn whether
// the attachment could be closed.
//
// While an attachment is detached ([Attachment.Detach]) Follow maps nothing in its place. Newer memory does not end its
// Context, and the end of its lease does not bring the next: Follow waits until the body, or another goroutine, has
// reattached or closed it, or ctx ends. A lease that the producer's successor grants is a detached one, too. What
// [Attachment.Reattach] returns takes the attachment's place in the loop: Follow closes it, and has its Context end as
// the other's would have.
//
// The versions are mapped one after the other, or one beside the other (Overlap). In a
// Reservation all have the same address, so that a captured graph can be launched again.
//
// Follow waits, with pauses that grow to half a second, until ctx ends, if the producer
// does not listen, does not have the name, has ended or taken the offer back, has no place,
// or took too long over a step ([Retryable]); OnWait tells for what it waits. The last pair of the
// loop is an error: that of ctx, joined with the last reason to wait, or one that is not Retryable,
// such as a producer that does not admit this process, another kind of driver or version, more
// access than is offered, memory that cannot be mapped, an invalid option, or an attachment that
// cannot be closed. While the name stands for memory
// that the body does not want again, the producer says when there is newer (Wait); an
// older producer is asked again and again.
func Follow(ctx context.Context, path, name string, dev *cu.Device, opts *AttachOptions) iter.Seq2[*Attachment, error] {
	if opts != nil {
		opts = new(*opts)
		opts.Policy = clonePolicy(opts.Policy)
	}
	return func(yield func(*Attachment, error) bool) {
		f := &following{path: path, name: name, dev: dev, opts: opts}
		defer f.closeLent()
		if more, err := f.run(ctx, yield); more {
			yield(nil, err)
		}
	}
}

// A following is one range over what is offered.
type following struct {
	path, name string
	dev        *cu.Device
	opts       *AttachOptions
	known      uint64        // the generation that the body does not want again, or 0
	lent       []*Attachment // what the body has, with Overlap
}

// run gives the body one attachment after the other. more says whether the body wants the error.
func (f *following) run(ctx context.Context, yield func(*Attachment, error) bool) (more bool, err error) {
	for more = true; more && err == nil; {
		var att *Attachment
		if att, err = f.attach(ctx); err != nil {
			return true, err
		}
		lend := f.lend
		if att.opts.Overlap {
			lend = f.overlap
		}
		more, err = lend(ctx, att, yield)
	}
	return more, err
}

// The pauses between two tries to attach.
const (
	followMin = 2 * time.Millisecond
	followMax = 500 * time.Millisecond
)

// attach attaches as soon as there is something to attach to.
func (f *following) attach(ctx context.Context) (*Attachment, error) {
	o, err := newAttachOptions(f.opts)
	if err != nil {
		return nil, err
	}
	o.within = ctx
	if f.known > 0 {
		o.NewerThan, o.Wait = f.known, true
	}
	var att *Attachment
	why := errNoAnswer
	if o.Wait && o.NewerThan > 0 {
		why = errNothingNewer
	}
	err = retry(ctx, o.OnWait, why, func() (err error) {
		att, err = o.attach(ctx, f.path, f.name, f.dev)
		return err
	})
	return att, err
}

// retry tries until it succeeds, waiting does not help, or ctx ends, with pauses. first is why it waits until a
// try has failed.
func retry(ctx context.Context, say func(error), first error, try func() error) error {
	t := newTeller(say, first)
	defer t.stop()
	var why error // it waits
	for pause := followMin; ; pause = min(2*pause, followMax) {
		err := try()
		if err == nil {
			return nil
		}
		if ended := plain.ContextErr(ctx); ended != nil {
			return errors.Join(ended, cmp.Or(why, err))
		}
		if !Retryable(err) {
			return err
		}
		why = err
		t.note(err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return errors.Join(plain.ContextErr(ctx), why)
		}
	}
}

// silence is how long a wait says nothing ([AttachOptions].OnWait).
const silence = time.Second

// A teller tells the function of OnWait why a wait goes on, once it has lasted for a silence.
type teller struct {
	say   func(error) // or nil
	timer *time.Timer

	mu   sync.Mutex
	due  bool
	why  error
	told string
}

// Why a wait goes on before a first try has failed.
var (
	errNoAnswer     = errors.New("share: the producer has not answered yet, or has not given its offer memory yet")
	errNothingNewer = errors.New("share: the producer has not answered yet, or has nothing newer than what was taken or refused before")
)

func newTeller(say func(error), why error) *teller {
	t := &teller{say: say, why: why}
	t.timer = time.AfterFunc(silence, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.due = true
		t.tell()
	})
	return t
}

func (t *teller) note(why error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.why = why
	t.tell()
}

// tell runs with mu held.
func (t *teller) tell() {
	if t.due && t.say != nil && t.why.Error() != t.told {
		t.told = t.why.Error()
		t.say(t.why)
	}
}

// stop waits for a call of the function.
func (t *teller) stop() {
	t.timer.Stop()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.say = nil
}

// Retryable reports whether attaching may succeed later where it has failed with err: the producer does
// not listen, does not have the name, has ended the offer or the lease, was lost, has no place, or took too
// long. [Follow] waits after such errors. It is true of an end of a lease ([Attachment.Err]), too.
func Retryable(err error) bool {
	var no *serve.RefusalError
	if errors.As(err, &no) {
		switch no.Code {
		case wire.RefusedName, wire.RefusedBusy, wire.RefusedTimeout, wire.RefusedRate:
			return true
		}
		return false
	}
	for _, passing := range []error{sock.ErrNoListener, sock.ErrPeerLost, ErrTimeout, ErrStale} {
		if errors.Is(err, passing) {
			return true
		}
	}
	return serve.IsEnded(err)
}

// lend gives the attachment to the body of the loop, waits until there is something
// newer, and closes it. more says whether the body wants that.
func (f *following) lend(ctx context.Context, att *Attachment, yield func(*Attachment, error) bool) (more bool, err error) {
	defer func() {
		end := closeOrAbandon // behind a break, or a panic, nobody waits for what comes next
		if more {
			end = func(att *Attachment) error { return f.letGo(ctx, att) }
		}
		err = errors.Join(err, closeLine(att, end))
	}()
	if !yield(att, nil) {
		return false, nil
	}
	return true, f.await(ctx, att)
}

// await waits until there is something newer than an attachment, or those that took its place by Reattach, or
// until its lease has ended. While it is detached nothing is taken in its place: whoever detached it does not want
// memory mapped.
func (f *following) await(ctx context.Context, att *Attachment) error {
	for {
		select {
		case <-att.Done():
		case <-att.Superseded():
		case <-ctx.Done():
			return plain.ContextErr(ctx)
		}
		if att.asleep.Load() == nil {
			break
		}
		select {
		case <-att.left:
		case <-ctx.Done():
			return plain.ContextErr(ctx)
		}
		next := att.line.Load()
		if next == att { // it was closed
			break
		}
		att = next
	}
	if !att.opts.Overlap && serve.IsClosed(att.Superseded()) && !serve.IsClosed(att.Done()) {
		att.cancel(ErrSuperseded) // before Close gives the context another cause: endWhenSuperseded may not have run yet
	}
	f.know(att)
	return nil
}

// know notes whether the body does not want the memory of an attachment again: it has closed that, or has
// given its verdict.
func (f *following) know(att *Attachment) {
	f.known = 0
	if att.isClosed() || att.judged.Load() {
		f.known = att.Offer().Descriptor.Generation
	}
}

// endWhenSuperseded ends the attachment's context with its lease or when there is
// something newer, whichever comes first; if it is detached then, only with its lease.
func (a *Attachment) endWhenSuperseded() {
	select {
	case <-a.Superseded():
		if a.asleep.Load() == nil {
			a.cancel(ErrSuperseded)
		}
	case <-a.Done():
	}
}
