package channel

import (
	"errors"
	"fmt"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/plain"
)

// A Policy says what happens to a reader that is slower than the writer.
type Policy int

// The policies.
const (
	// Block makes the writer wait for the reader, which misses no frame.
	Block Policy = 1
	// DropOldest never makes the writer wait. A reader that was passed by goes on with the newest
	// frame; the frame's Sequence and Stats tell how many it lost.
	DropOldest Policy = 2
	// DropNewest never makes the writer wait. A reader keeps the frames that it has not taken
	// yet. It gets no new frames while all readers that drop the newest together hold half of the
	// slots, or while it alone holds its share: that half divided by the number of such readers,
	// and one at least.
	DropNewest Policy = 3
	// Latest never makes the writer wait, and Next gives the newest frame. The reader holds one frame at a
	// time, which nobody overwrites until Release. At most slots - 2 such readers are admitted, and fewer by half of
	// the slots where readers drop the newest. In a channel for streams ([WithStreams]) the reader
	// blocks, and Next gives back what it skips.
	Latest Policy = 4
)

// policies are all of them, by number.
var policies = []Policy{Block, DropOldest, DropNewest, Latest}

// String returns the name that the command line takes: "block", "drop-oldest",
// "drop-newest" or "latest".
func (p Policy) String() string {
	switch p {
	case Block:
		return "block"
	case DropOldest:
		return "drop-oldest"
	case DropNewest:
		return "drop-newest"
	case Latest:
		return "latest"
	}
	return fmt.Sprintf("Policy(%d)", int(p))
}

// ParsePolicy returns the policy of that name.
func ParsePolicy(name string) (Policy, error) {
	for _, p := range policies {
		if p.String() == name {
			return p, nil
		}
	}
	return 0, fmt.Errorf("channel: policy %q; want block, drop-oldest, drop-newest or latest", name)
}

// A Join is the frame that a reader begins with.
type Join int

// The frames that a reader may begin with.
const (
	Next Join = 1 // with the first frame that is published after it has joined
	// Newest is the last one that was published, if its slot was not taken again and no stream has still to publish it. In
	// a channel [WithAnyOrder] the reader waits up to 5 seconds for such a stream.
	Newest Join = 2
)

// Errors of this package. Those of attaching are package share's.
var (
	// ErrClosed says that this side was closed. It is [gpumem.ErrClosed].
	ErrClosed = gpumem.ErrClosed

	errClosed = plain.ErrorOf("channel: this side was closed", ErrClosed)
	// ErrEnded says that the writer has ended in order and this reader has taken all frames.
	ErrEnded = errors.New("channel: the writer has ended")
	// ErrLost matches every [*WriterLostError].
	ErrLost = errors.New("channel: the writer was lost")
	// ErrPolicy says that the channel, or the reader's policy, does not allow the call.
	ErrPolicy = errors.New("channel: not with this policy")
	// ErrStalled says that a reader did not give a slot back in time ([WithStallLimit]).
	ErrStalled = errors.New("channel: a reader holds the slot too long")
	// ErrDropped says that the writer has dropped this reader and uses its slots again. So has a writer
	// whose server is closed first: close the writer before its server, and readers get the frames that
	// are left, and then ErrEnded.
	ErrDropped = errors.New("channel: dropped by the writer")
	// ErrPassed says that the writer took the slot of a frame while the reader held it.
	ErrPassed = errors.New("channel: the writer has passed this reader by")
	// ErrCursor says that a peer wrote a value that its cursor cannot have.
	ErrCursor = errors.New("channel: nonsense in a cursor")
	// ErrOrder says that a frame was not released in its order, or that a side's stream and its
	// host would write the same word.
	ErrOrder = errors.New("channel: out of order")
	// ErrInUse says that a stream still has work of the channel queued. It is [gpumem.ErrInUse].
	ErrInUse = gpumem.ErrInUse
	// ErrNoOffer says that the writer's channel is not offered any more: its server was closed, say.
	ErrNoOffer = errors.New("channel: no longer offered")
	// ErrNoChannel says that the offer is not a channel.
	ErrNoChannel = errors.New("channel: the offer is no channel")
)

// A WriterLostError says that the writer died or hung up without having ended.
type WriterLostError struct {
	Last uint64 // sequence of the last whole frame; 0 if there was none
	Err  error  // how the lease ended
}

// Error names the last whole frame.
func (e *WriterLostError) Error() string {
	return fmt.Sprintf("%v; the last whole frame is %d: %v", ErrLost, e.Last, e.Err)
}

// Unwrap returns how the lease ended.
func (e *WriterLostError) Unwrap() error { return e.Err }

// Is matches [ErrLost].
func (e *WriterLostError) Is(target error) bool { return target == ErrLost }
