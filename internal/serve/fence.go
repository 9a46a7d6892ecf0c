package serve

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// A Fence says how sure it is that a peer's work on the memory has ended, after its lease
// has. The end of a lease alone says nothing: the kernel of a killed process goes on
// writing for milliseconds after the connection has ended.
type Fence int

// The fences. Fenced is the stronger one: a wait for Released accepts it, too.
const (
	// Released: the peer has promised that nothing of its own uses the memory any more.
	Released Fence = iota + 1
	// Fenced: the connection is over, and the process that made it has died, so nothing
	// of it runs on the device any more. Other processes that it forked, or to which it
	// passed descriptors, may still use the memory.
	Fenced
)

// String returns the name.
func (f Fence) String() string {
	switch f {
	case Released:
		return "Released"
	case Fenced:
		return "Fenced"
	}
	return fmt.Sprintf("Fence(%d)", int(f))
}

// CheckFence returns an error unless f is one of the two.
func CheckFence(f Fence) error {
	if f != Released && f != Fenced {
		return fmt.Errorf("share: %v is no fence to wait for: want Released or Fenced", f)
	}
	return nil
}

// ErrNoFence says that no wait can tell when a peer's work on the memory has ended. A
// [*FenceError] says why: the peer may run under MPS, where its work outlives it; the peer
// is older and does not say whether it does; the kernel gives no descriptor of its process;
// or the process is not watched any more.
var ErrNoFence = errors.New("share: it cannot be known when the peer's work on the memory has ended")

// A FenceError names the peers whose work on the memory may go on.
type FenceError struct {
	Want  Fence
	Peers []sock.Peer // each once, 64 at most
	More  int         // leases of others
	Err   error       // what ended the wait; it matches ErrNoFence where that had no end
}

// Error names the peers.
func (e *FenceError) Error() string {
	more := ""
	if e.More > 0 {
		more = fmt.Sprintf("; and %d more", e.More)
	}
	return fmt.Sprintf("share: waiting for the fence %s of the peer (%s%s): %v", e.Want, PeerNames(e.Peers), more, e.Err)
}

// Unwrap returns what ended the wait.
func (e *FenceError) Unwrap() error { return e.Err }

// A PeerFence is what one connection knows of the process at its other end.
type PeerFence struct {
	peer     sock.Peer
	Watch    *Watch          // or nil
	unknown  error           // why its work may outlive the process, or the process is not watched; or nil
	over     <-chan struct{} // the end of the lease
	Released bool            // before over

	mu     sync.Mutex
	fenced chan struct{} // once somebody has asked for it
	told   bool          // it is closed
}

// NewPeerFence returns the fence of a peer. says is what the peer said of its process; watching
// is why the process is not watched, if w is nil.
func NewPeerFence(peer sock.Peer, says wire.Process, w *Watch, watching error, over <-chan struct{}) *PeerFence {
	return &PeerFence{peer: peer, Watch: w, over: over, unknown: unknownEnd(says, w, watching)}
}

// unknownEnd returns why the end of a process does not say that its work has ended, or nil.
func unknownEnd(says wire.Process, w *Watch, watching error) error {
	switch {
	case w == nil:
		return watching
	case !says.Told:
		return errors.New("the peer is older and does not say whether it runs under MPS")
	case says.Flags&wire.ProcessMPS != 0:
		return errors.New("the peer says that it may run under MPS, where its work outlives it")
	}
	return nil
}

// doubt returns why it cannot be known when the peer is fenced, or nil.
func (f *PeerFence) doubt() error {
	err := f.unknown
	if err == nil {
		err = f.Watch.doubt()
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrNoFence, err)
}

// is reports whether the peer is fenced as wanted. Call it after the lease has ended.
func (f *PeerFence) is(want Fence) bool {
	return want == Released && f.Released || f.unknown == nil && IsClosed(f.Watch.died)
}

// await waits until the peer is fenced as wanted.
func (f *PeerFence) await(ctx context.Context, want Fence) error {
	over := IsClosed(f.over)
	if over && f.is(want) {
		return nil
	}
	if err := f.doubt(); err != nil && (want == Fenced || over) {
		return err
	}
	select {
	case <-f.over:
	case <-ctx.Done():
		return plain.ContextErr(ctx)
	}
	if want == Released && f.Released {
		return nil
	}
	if f.unknown != nil {
		return f.doubt()
	}
	select {
	case <-f.Watch.died:
		return nil
	case <-f.Watch.lost:
		return f.doubt()
	case <-ctx.Done():
		return plain.ContextErr(ctx)
	}
}

// AwaitFence checks want, and waits for the fence. After an error it is a *FenceError that names the peer.
func (f *PeerFence) AwaitFence(ctx context.Context, want Fence) error {
	if err := CheckFence(want); err != nil {
		return err
	}
	if err := f.await(ctx, want); err != nil {
		return &FenceError{Want: want, Peers: []sock.Peer{f.peer}, Err: err}
	}
	return nil
}

// Fenced returns a channel that is closed when the peer is fenced.
func (f *PeerFence) Fenced() <-chan struct{} {
	f.mu.Lock()
	first := f.fenced == nil
	if first {
		f.fenced = make(chan struct{})
	}
	f.mu.Unlock()
	if first && f.unknown == nil {
		f.Watch.tell(f)
		f.Settle()
	}
	return f.fenced
}

// Settle closes the channel if the lease has ended and the process has died.
func (f *PeerFence) Settle() {
	if f.unknown != nil || !IsClosed(f.over) || !IsClosed(f.Watch.died) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fenced != nil && !f.told {
		f.told = true
		close(f.fenced)
	}
}

// Closed is the Done of zero values.
var Closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func IsClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// deathTime bounds how long a killed process takes to die: on a GPU its connection ends
// tens of milliseconds before.
const deathTime = 500 * time.Millisecond

// A LostError says that a peer's connection has ended without a farewell: the peer was
// killed or has failed. It matches [sock.ErrPeerLost].
type LostError struct {
	Peer sock.Peer
	Err  error // what the connection said

	process *Watch
}

// Died reports whether the process that made the connection has died, and has not only
// hung up. A process dies a moment after its connection has ended, so Died waits for half a
// second at most. It returns false if the end of the process cannot be known.
func (e *LostError) Died() bool {
	if e == nil || e.process == nil {
		return false
	}
	timer := time.NewTimer(deathTime)
	defer timer.Stop()
	select {
	case <-e.process.died:
		return true
	case <-e.process.lost:
	case <-timer.C:
	}
	return false
}

// Error says what the connection said, and whether the process is known to have died.
func (e *LostError) Error() string {
	if e.process != nil && IsClosed(e.process.died) {
		return fmt.Sprintf("%v: its process has died", e.Err)
	}
	return fmt.Sprintf("%v: it has said no farewell", e.Err)
}

// Unwrap returns what the connection said.
func (e *LostError) Unwrap() error { return e.Err }

// Lost makes a LostError of the end of a connection, unless the peer has said farewell, or
// is older and does not know how.
func (f *PeerFence) Lost(t *Transport, says wire.Process, err error) error {
	if t.Left || !says.Told || !errors.Is(err, sock.ErrPeerLost) {
		return err
	}
	return &LostError{f.peer, err, f.Watch}
}
