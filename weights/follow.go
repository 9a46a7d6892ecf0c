package weights

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"

	"github.com/gpufd/gpufd/channel"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/sockets"
	"github.com/gpufd/gpufd/share"
)

// Options are those of [Follow].
type Options struct {
	// Publisher is the device whose publisher is followed. Zero is that of the reader's context; memory of
	// another one is read by peer access.
	Publisher cu.UUID
	// Socket is the path at which the publisher listens. "" is the default of its name.
	Socket string
	// Attach are the options by which the reader attaches, as for [channel.WithAttach].
	Attach share.AttachOptions
}

// OfferName returns the name under which the publisher of weights on a device offers its channel.
func OfferName(name string, publisher cu.UUID) string {
	return name + "@" + hex.EncodeToString(publisher[:])
}

// Follow yields the updates of a name, one after the other, and waits where there is none. It takes them from the
// publisher on the device of c, so that each worker gets those of its own GPU. When a publisher has ended or died,
// Follow waits for the next one. c stays open until the loop has ended.
//
//	for u, err := range weights.Follow(ctx, "policy", c, nil) {
//		if err != nil {
//			return err
//		}
//		for t, err := range u.Tensors(ctx) {
//			if err != nil { // torn, or ctx has ended
//				break
//			}
//			load(t)
//		}
//		usable = u.Err() == nil
//	}
//
// Follow yields an update as soon as its first bucket is there, so before anybody knows whether it will be whole:
// [Update.Tensors] says that. An update whose first bucket came before the reader had joined is not yielded. When the
// body returns to the loop, all tensors are given back, and the publisher learns whether the body has taken all tensors
// of an update that is whole. When the body leaves the loop, the publisher learns of that update only if the body has
// taken all its tensors. What the body did not take of an update is skipped.
//
// Follow ends with the error of ctx, with [ErrFormat] for a publisher that breaks the format, or with those of [channel.Follow].
func Follow(ctx context.Context, name string, c *cu.Context, opts *Options) iter.Seq2[*Update, error] {
	return func(yield func(*Update, error) bool) {
		var o Options
		if opts != nil {
			o = *opts
		}
		if err := o.complete(name, c); err != nil {
			yield(nil, err)
			return
		}
		var known tables
		for r, err := range channel.Follow(ctx, o.Socket, OfferName(name, o.Publisher), c, channel.WithJoin(channel.Newest), channel.WithAttach(o.Attach)) {
			s := &subscription{c: c, r: r, tables: &known}
			if err == nil {
				err = s.open()
			}
			more := true
			if err == nil {
				more, err = s.run(ctx, yield)
			}
			if err != nil {
				yield(nil, err)
			}
			if !more || err != nil {
				return
			}
		}
	}
}

// complete fills in what the caller left out.
func (o *Options) complete(name string, c *cu.Context) (err error) {
	if c == nil {
		return errors.New("weights: no context for a reader (nil)")
	}
	if o.Publisher == (cu.UUID{}) {
		o.Publisher = c.Device().UUID()
	}
	if o.Socket == "" {
		if o.Socket, err = sockets.Offer(OfferName(name, o.Publisher)); err != nil {
			return fmt.Errorf("weights: %w", err)
		}
	}
	return nil
}
