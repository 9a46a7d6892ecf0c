package serve

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/gpufd/gpufd/fence"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

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
	return fmt.Errorf("%w: %w", fence.ErrUnknown, err)
}

// is reports whether the peer is fenced as wanted. Call it after the lease has ended.
func (f *PeerFence) is(want fence.Kind) bool {
	return want == fence.Released && f.Released || f.unknown == nil && IsClosed(f.Watch.died)
}

// await waits until the peer is fenced as wanted.
func (f *PeerFence) await(ctx context.Context, want fence.Kind) error {
	over := IsClosed(f.over)
	if over && f.is(want) {
		return nil
	}
	if err := f.doubt(); err != nil && (want == fence.Fenced || over) {
		return err
	}
	select {
	case <-f.over:
	case <-ctx.Done():
		return plain.ContextErr(ctx)
	}
	if want == fence.Released && f.Released {
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

// AwaitFence checks want, and waits for the fence. After an error it is a *fence.Error that names the peer.
func (f *PeerFence) AwaitFence(ctx context.Context, want fence.Kind) error {
	if err := want.Check(); err != nil {
		return err
	}
	if err := f.await(ctx, want); err != nil {
		return &fence.Error{Want: want, Peers: []sock.Peer{f.peer}, Err: err}
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

// Lost makes a sock.LostError of the end of a connection, unless the peer has said farewell, or
// is older and does not know how.
func (f *PeerFence) Lost(t *Transport, says wire.Process, err error) error {
	if t.Left || !says.Told || !errors.Is(err, sock.ErrPeerLost) {
		return err
	}
	return &sock.LostError{Peer: f.peer, Err: err, Dead: f.dead()}
}

// dead returns a channel that is closed when the process has died, or nil if that cannot be known.
func (f *PeerFence) dead() <-chan struct{} {
	if f.Watch == nil {
		return nil
	}
	return f.Watch.died
}
