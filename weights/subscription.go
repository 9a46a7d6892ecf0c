package weights

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpufd/gpufd/channel"
	"github.com/gpufd/gpufd/cu"
)

// A subscription is what Follow takes from one publisher.
type subscription struct {
	c        *cu.Context
	r        *channel.Reader
	metadata Metadata
	assembly assembly
	tables   *tables
	ahead    *channel.Frame // begins the next update; it tore the one before
	over     bool           // the channel has ended
	fatal    error          // why nothing more is taken from this publisher
}

func (s *subscription) open() (err error) {
	if !s.r.AnyOrder() {
		return fmt.Errorf("%w: the slots of the channel do not come back in any order, as those of weights do", ErrFormat)
	}
	if s.metadata, err = parseMetadata(s.r.Attachment().Offer().Data); err != nil {
		return err
	}
	if n := s.r.Slots(); s.metadata.InPlace && n != 1 {
		return fmt.Errorf("%w: weights in place in a channel of %d slots; want 1", ErrFormat, n)
	}
	s.assembly.describe(&s.metadata)
	return nil
}

// run yields the publisher's updates. more says whether the body wants those of the next publisher, or the error.
func (s *subscription) run(ctx context.Context, yield func(*Update, error) bool) (more bool, err error) {
	for {
		u, err := s.begin(ctx)
		if u == nil || err != nil {
			return true, err
		}
		more := yield(u, nil)
		if u.end(more); !more {
			if s.ahead != nil {
				_ = s.r.Release(*s.ahead) // fails where the channel has ended
			}
			return false, nil
		}
	}
}

// begin waits for an update to begin. It returns nil when the channel has ended.
func (s *subscription) begin(ctx context.Context) (*Update, error) {
	for {
		f, err := s.next(ctx)
		if s.over {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		b, _, belongs, err := s.place(f)
		if err != nil {
			return nil, err
		}
		if belongs {
			u := &Update{Number: b.number, Step: b.step, Metadata: &s.metadata, s: s}
			return u, u.take(f, &b)
		}
		if err := s.r.Release(*f); err != nil && !errors.Is(err, channel.ErrDropped) {
			return nil, err
		}
	}
}

// next takes the next frame. s.over and s.fatal say whether there are more behind an error.
func (s *subscription) next(ctx context.Context) (*channel.Frame, error) {
	if f := s.ahead; f != nil {
		s.ahead = nil
		return f, nil
	}
	if s.fatal != nil {
		return nil, s.fatal
	}
	f, err := s.r.Next(ctx)
	switch {
	case err == nil:
		return &f, nil
	case errors.Is(err, channel.ErrEnded), errors.Is(err, channel.ErrLost), errors.Is(err, channel.ErrDropped):
		s.over = true // and Next says so again
	case ctx.Err() == nil && !errors.Is(err, channel.ErrOrder):
		s.fatal = err
	}
	return nil, err
}

// place reads the own bytes of a frame, and says where it belongs.
func (s *subscription) place(f *channel.Frame) (b bucket, torn, belongs bool, err error) {
	if b, err = parseBucket(f.User(), f.Size()); err == nil {
		torn, belongs, err = s.assembly.place(&b)
	}
	s.refuse(f, err)
	return b, torn, belongs, err
}

// accept reads the table of a frame that belongs somewhere, and adds the frame to the assembly.
func (s *subscription) accept(f *channel.Frame, b *bucket) (*table, error) {
	t, err := s.tables.of(b, func() ([]byte, error) {
		text := make([]byte, b.size)
		return text, cu.CopyToHost(s.c, text, f.Ptr().Add(b.at))
	})
	if err == nil {
		err = s.assembly.add(b, t)
	}
	s.refuse(f, err)
	return t, err
}

// refuse takes nothing more from the publisher if there is an error, and gives the frame back: the body may be busy for long.
func (s *subscription) refuse(f *channel.Frame, err error) {
	if err != nil {
		s.fatal = errors.Join(err, s.r.Release(*f))
	}
}
