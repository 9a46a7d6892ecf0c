package channel

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/share"
)

// A WriterOption is an option of [NewWriter].
type WriterOption func(*writerOptions)

type writerOptions struct {
	flags   uint64 // of the cursors
	stall   time.Duration
	drop    bool
	readers int
	onDrop  func(Gone)
	offer   share.OfferOptions
}

// WithStreams makes a channel for streams: [Writer.AcquireOn], [Writer.PublishOn],
// [Reader.NextOn] and [Reader.ReleaseOn] work. The calls of the host work, too. Readers block
// there, those of [Latest] as well, which give back what they skip. [DropOldest] and [DropNewest] are
// refused ([ErrPolicy]): the writer's stream is given frames and slots before anybody knows how slow a reader will be.
func WithStreams() WriterOption { return func(o *writerOptions) { o.flags |= flagStreams } }

// WithAnyOrder makes a channel whose slots come back in any order: a reader may keep a frame while it takes and releases
// later ones, as an application does that gives a slot back when nothing refers to its bytes any more. Frames are acquired
// and taken by the host ([Writer.Acquire], [Reader.Next]); they are published and released by the host or a stream
// ([Writer.PublishOn], [Reader.ReleaseOn]), and no stream waits. Such a channel has 384 slots at most, is not one
// WithStreams, and all readers block: other policies are refused ([ErrPolicy]).
func WithAnyOrder() WriterOption { return func(o *writerOptions) { o.flags |= flagAnyOrder } }

// WithStallLimit bounds how long a reader that blocks may keep the writer waiting for a slot. Then
// Acquire returns [ErrStalled] and can be called again. Where a stream waits ([Writer.AcquireOn]), no
// call could return an error, so the reader is dropped as by [WithDropAfter]. The default, 0, is no
// bound. Of these two options the last one counts.
func WithStallLimit(d time.Duration) WriterOption {
	return func(o *writerOptions) { o.stall, o.drop = d, false }
}

// WithDropAfter makes the writer drop a reader that blocks and keeps it waiting for a slot for d. The
// reader gets [ErrDropped], and the writer goes on. The default, 0, is no bound.
func WithDropAfter(d time.Duration) WriterOption {
	return func(o *writerOptions) { o.stall, o.drop = d, true }
}

// WithReaders admits up to n readers at once. The default, and the most, is [MaxReaders].
func WithReaders(n int) WriterOption { return func(o *writerOptions) { o.readers = n } }

// OnGone calls f for each reader that has left, died or was dropped, on a goroutine of its own. f must
// not close the writer: Close waits for f.
func OnGone(f func(Gone)) WriterOption { return func(o *writerOptions) { o.onDrop = f } }

// WithOffer sets the options of the offer of the channel's memory. Access, Pending, Fence, CursorSize,
// OnCursors and Slots are the channel's own, and so is Synchronized.
func WithOffer(opts share.OfferOptions) WriterOption {
	return func(o *writerOptions) { o.offer = opts }
}

func newWriterOptions(opts []WriterOption) (*writerOptions, error) {
	o := &writerOptions{readers: MaxReaders, onDrop: func(Gone) {}}
	for _, f := range opts {
		if f != nil {
			f(o)
		}
	}
	switch {
	case o.stall < 0:
		return nil, fmt.Errorf("channel: a reader may stall the writer for %s: want 0, which is no bound, or more", o.stall)
	case o.readers < 1 || o.readers > MaxReaders:
		return nil, fmt.Errorf("channel: WithReaders(%d): want 1 to %d", o.readers, MaxReaders)
	case o.offer.Access > cu.ReadOnly || o.offer.Pending || o.offer.Fence != 0 || o.offer.CursorSize != 0 || o.offer.OnCursors != nil || o.offer.Slots != 0:
		return nil, errors.New("channel: WithOffer with Access, Pending, Fence, CursorSize, OnCursors or Slots: these are the channel's own")
	case o.onDrop == nil:
		return nil, fmt.Errorf("channel: OnGone without a function (nil)")
	}
	return o, nil
}

// A ReaderOption is an option of [Open] and [Follow].
type ReaderOption func(*readerOptions)

type readerOptions struct {
	policy Policy
	join   Join
	attach share.AttachOptions
}

// WithPolicy sets what happens when this reader is too slow. The default is [Block].
func WithPolicy(p Policy) ReaderOption { return func(o *readerOptions) { o.policy = p } }

// WithJoin sets the frame that the reader begins with. The default is [Next].
func WithJoin(j Join) ReaderOption { return func(o *readerOptions) { o.join = j } }

// WithAttach sets the options of [share.Attach] or [share.Follow]. The reader itself sets MaxCursors
// and PeerAccess.
func WithAttach(opts share.AttachOptions) ReaderOption {
	return func(o *readerOptions) { o.attach = opts }
}

func newReaderOptions(opts []ReaderOption) (*readerOptions, error) {
	o := &readerOptions{policy: Block, join: Next}
	for _, f := range opts {
		if f != nil {
			f(o)
		}
	}
	if o.policy < Block || o.policy > Latest {
		return nil, fmt.Errorf("channel: %v is no policy; want Block, DropOldest, DropNewest or Latest", o.policy)
	}
	if o.join != Next && o.join != Newest {
		return nil, fmt.Errorf("channel: WithJoin(%d): want Next or Newest", o.join)
	}
	return o, nil
}
