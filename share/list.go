package share

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// maxListed is how many offers List takes.
const maxListed = 4096

// ListOptions are those of [List].
type ListOptions struct {
	Policy  sock.Policy   // whose lists are taken; the zero Policy takes those of this process's effective user
	Timeout time.Duration // of the whole call; 0 is 30 s

	OnConnected func(sock.Peer) // is called with the producer once the connection is made; or nil

	peer func(*serve.PeerOptions) // tests'
}

// A Listing is what [List] tells of one offer.
type Listing struct {
	Name       string
	Driver     cu.Kind
	Device     cu.UUID   // that the memory is on
	Legacy     bool      // it is legacy memory ([AttachOptions].Legacy)
	Access     cu.Access // the most that may be asked for
	Size       uint64    // size of the offered memory, in bytes
	Generation uint64    // see [vmm.Descriptor]
	DataSize   uint64    // bytes of application data
	Pending    bool      // the data is not there yet: see [OfferOptions]
	Leases     int       // that consumers have now; -1 if the producer is older than that
	Slots      int       // that the application divides the memory into ([OfferOptions].Slots); 0 if it does not say
}

// List asks the producer that listens at path what it offers. It returns the offers as of
// one instant, sorted by name, with those that are pending, but without those that have
// no memory yet. If the producer has an Authorize function, offers that this process may not read are
// left out. List attaches to nothing and needs no driver. It takes no longer than one step.
//
// Errors: [sock.ErrNoListener] and the others of [sock.Dial]; [sock.ErrNotAdmitted] for a
// producer of another user; [ErrUnsupported] for a producer that is older than lists;
// [ErrTooLarge] for more than 4,096 offers; [ErrRefused]; [ErrTimeout];
// [sock.ErrPeerLost]; [ErrProtocol]; an error for an
// invalid option.
func List(ctx context.Context, path string, opts *ListOptions) ([]Listing, error) {
	if err := plain.ContextErr(ctx); err != nil {
		return nil, err
	}
	if opts == nil {
		opts = &ListOptions{}
	}
	o := serve.NewPeerOptions()
	if err := setPeer(&o, opts.Timeout, opts.Policy, opts.peer); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.Timeout, ErrTimeout)
	defer cancel()
	t, err := connect(ctx, path, o, sock.WithMaxFDs(0))
	if err != nil {
		return nil, err
	}
	if opts.OnConnected != nil {
		opts.OnConnected(t.Conn.Peer())
	}
	all, err := askList(ctx, t)
	var last wire.Message
	if serve.IsBadRecord(err) || errors.Is(err, serve.ErrRate) || errors.Is(err, ErrTooLarge) {
		last = serve.Refusal(err)
	}
	_ = t.Close(last, 0)
	return all, err
}

// askList asks for a list and collects its records.
func askList(ctx context.Context, t *serve.Transport) (all []Listing, err error) {
	if err := t.Send(ctx, wire.List{}); err != nil && !errors.Is(err, sock.ErrPeerLost) { // which may have said why before
		return nil, err
	}
	for left := -1; left != 0; {
		m, _, err := t.Receive(ctx, true)
		if errors.Is(err, sock.ErrPeerLost) {
			return nil, fmt.Errorf("the producer closed the connection before its list was complete: %w", err)
		}
		if err != nil {
			return nil, err
		}
		l, ok := m.(wire.Listed)
		if !ok {
			return nil, serve.Unexpected(m, "where a list of offers belongs")
		}
		if left < 0 {
			left = l.Left + len(l.Offers) // the first record says how many there are
		}
		if left > maxListed {
			return nil, fmt.Errorf("%w: a list of %d offers; want %d at most", ErrTooLarge, left, maxListed)
		}
		if err := l.Continues(left); err != nil {
			return nil, err
		}
		left = l.Left
		for _, o := range l.Offers {
			all = append(all, listingOf(o))
		}
	}
	return all, nil
}

func listingOf(o wire.Listing) Listing {
	l := Listing{Name: o.Name, Driver: o.Driver, Device: o.Device, Legacy: o.Handle == wire.HandleLegacy, Access: o.Access,
		Size: o.Size, Generation: o.Generation, DataSize: o.DataSize, Pending: o.Pending, Leases: int(o.Counts.Leases), Slots: int(o.Counts.Slots)}
	if !o.Counts.Told {
		l.Leases = -1
	}
	return l
}
