package share

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/fence"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// A nil or zero options struct means the defaults. Options are copied: changing them after the call
// changes nothing.

// ListenOptions are those of [Listen] and [TakeOver].
type ListenOptions struct {
	// Policy says which peers are admitted; others are refused ([ErrDenied]). The zero
	// Policy admits this process's effective user.
	Policy sock.Policy

	// Mode is the permissions of the socket file; 0 is 0600. To connect, other users need write
	// permission on it and search permission on its directory. See [sock.WithMode].
	Mode os.FileMode

	// Authorize decides which of the peers that the policy admits get an offer. The offer is what
	// the peer would get, with the access that it asks for (always [cu.ReadWrite] for legacy
	// memory). Its Data is nil if there are more than 4 KiB, and whole otherwise.
	//
	// Authorize is called once for each consumer and offer, also for pending offers, before the
	// consumer is sent anything of it. For a consumer that waits, it is called when the offer is
	// there; until then the consumer learns only of progress ([Offer.ReportProgress]). If the offer
	// is replaced before Authorize has admitted the consumer, it is called again with the new one.
	// For a consumer that waits for newer memory ([AttachOptions].Wait), it is called with the known
	// memory before the wait, and with the newer one after it: so a peer that is not admitted
	// cannot find out the generation by asking for larger ones.
	//
	// A peer that asks for a list ([List]) sees the offers that Authorize admits it to: it is called
	// for each, with Access 0. It is called so, too, for a peer that reattaches memory which is not there any
	// more, and would learn that the name stands for other memory.
	//
	// An error refuses the peer ([ErrDenied]). The peer does not see the error; OnRefused does.
	//
	// Authorize runs on goroutines of the server, for several peers at once, and delays no other
	// peer. It may call the server, but must not close it: Close waits for it. The peer waits no
	// longer than its own timeout.
	Authorize func(peer sock.Peer, offer OfferInfo) error

	// AuthorizeName decides first of all whether a peer may ask for a name with that access, whether
	// it is offered or not. A peer that is not admitted is turned away at once, with the same words in
	// both cases ([ErrDenied]), so it does not learn which names there are. A peer that names none
	// hears that there is no such offer, if it is not admitted to the only one. A list has the offers
	// that AuthorizeName admits to with [cu.ReadOnly]. It is called as Authorize is.
	AuthorizeName func(peer sock.Peer, name string, access cu.Access) error

	// Parts is called when a peer asks for a name that is not offered. If the name stands for memory
	// that is offered in parts, Parts returns the names of those that the peer may have. Then the peer
	// is refused with them ([ErrParts]), and [Follow] does not wait. It runs on the goroutine of
	// the connection.
	Parts func(peer sock.Peer, name string) []string

	// OnRefused is called once for each peer that is turned away and gets no lease, on goroutines of
	// the server, several at once. It must not close the server.
	OnRefused func(peer sock.Peer, err error)

	// Inherited is a socket that [Server.Files] returned, to go on with; see [sock.WithInherited].
	Inherited []*os.File

	// MaxConnections bounds the connections that are served at once; 0 is 1,024. Further ones are
	// refused ([ErrBusy]). Consumers that wait for an offer count, and so do those that ask for a list and
	// a successor that attaches to take the memory over.
	MaxConnections int

	// MaxConnectionsPerPeer bounds the connections of one process; 0 is 256. Processes without a pid
	// here, because they are in other PID namespaces, count as one process for each user.
	MaxConnectionsPerPeer int

	// Timeout bounds each step of a conversation; 0 is 30 s.
	Timeout time.Duration

	peer func(*serve.PeerOptions) // tests'
}

func (o *ListenOptions) options() (*serve.Options, error) {
	all := serve.NewOptions()
	if o == nil {
		return all, nil
	}
	o = new(*o)
	if o.MaxConnections < 0 || o.MaxConnectionsPerPeer < 0 {
		return nil, fmt.Errorf("share: %d connections, %d of a process: want 0, which is the default, or more", o.MaxConnections, o.MaxConnectionsPerPeer)
	}
	if o.MaxConnections > 0 {
		all.Connections = o.MaxConnections
	}
	if o.MaxConnectionsPerPeer > 0 {
		all.PerPeer = o.MaxConnectionsPerPeer
	}
	if o.Mode != 0 {
		all.Sock = append(all.Sock, sock.WithMode(o.Mode))
	}
	if o.Inherited != nil {
		all.Sock = append(all.Sock, sock.WithInherited(o.Inherited))
	}
	if o.Authorize != nil {
		all.Allow = func(peer sock.Peer, record wire.Offer, access cu.Access) error {
			return o.Authorize(peer, infoOf(record, access))
		}
	}
	all.AllowName, all.Parts, all.OnRefused = o.AuthorizeName, o.Parts, o.OnRefused
	return all, setPeer(&all.PeerOptions, o.Timeout, o.Policy, o.peer)
}

// setPeer sets what is about the other side.
func setPeer(o *serve.PeerOptions, timeout time.Duration, policy sock.Policy, test func(*serve.PeerOptions)) error {
	if timeout < 0 {
		return fmt.Errorf("share: a timeout of %s: want 0, which is %s, or more", timeout, serve.DefaultTimeout)
	}
	if timeout > 0 {
		o.Timeout = timeout
	}
	if o.Policy = clonePolicy(policy); test != nil {
		test(o)
	}
	return nil
}

func clonePolicy(p sock.Policy) sock.Policy {
	return sock.Policy{UIDs: slices.Clone(p.UIDs), GIDs: slices.Clone(p.GIDs)}
}

// OfferOptions are those of [Server.Offer] and [Offer.Supersede].
type OfferOptions struct {
	// Access is the most that consumers may ask for; 0 is [cu.ReadOnly], but [cu.ReadWrite] for legacy
	// memory, which cannot be offered for reading alone: see [Attachment.Access].
	Access cu.Access

	// Pending: the data is not there yet. [Offer.Publish] says when it is.
	Pending bool

	// Data is up to [MaxData] bytes of the application's own, which are copied. More than 4 KiB are
	// copied, once for all consumers, to a file of memory that nobody can change (memfd_create(2),
	// F_ADD_SEALS) and that lasts until the offer ends; a consumer that is too old to take such a
	// file is refused ([ErrUnsupported]).
	Data []byte

	// MaxConsumers is how many consumers are admitted in all, not at once: the offer ends when the last
	// of them has gone. A process that reattaches ([Attachment.Reattach]) counts once. 0 is no bound.
	MaxConsumers int

	// IdleTimeout ends the offer after that long without a consumer ([ErrNoConsumer]). 0 is no bound.
	IdleTimeout time.Duration

	// Grace bounds how long leases go on after another offer has taken the name ([Offer.Supersede]):
	// then the remaining ones end ([ErrSuperseded]). 0 is no bound: they go on until their consumers
	// leave, or this offer is closed.
	Grace time.Duration

	// Verdict demands that every consumer reports what it found ([Attachment.Report]), and shows that
	// it is at work ([Attachment.Progress]). Without, a consumer that has mapped the memory may be
	// silent for as long as it likes.
	Verdict bool

	// Synchronized: the caller has waited for the work on the memory, with [cu.Device.Synchronize] or
	// otherwise. So Offer does not wait, which saves driver calls of some microseconds each.
	Synchronized bool

	// With Fence the offer is done only when no consumer writes the memory any more; until then its
	// buffer cannot be closed. It waits for each consumer whose lease let it write to be fenced as
	// wanted, no longer than FenceTimeout. [fence.Fenced] requires the death of its process. For [fence.Released]
	// its word is enough ([Attachment.Close], [Attachment.Release]): consumers are told that the
	// producer waits for them ([OfferInfo].AwaitsRelease), and an offer that ends keeps the connections
	// of those that may write until they have released the memory.
	//
	// An offer of the same memory by the same server, which may have grown, waits for that, too, if the
	// first offer has ended or other memory has its name. If it may still be written in the end, both
	// fail with the same error. A pending offer does not wait, and fails with [ErrInUse].
	//
	// If the wait is not over in time, or the server is closed, the error is a [*fence.Error], which
	// names the consumers that may still write, and matches [fence.ErrUnknown] where no wait could tell.
	// Nobody waits for consumers with read-only leases: see docs/security.md.
	Fence        fence.Kind
	FenceTimeout time.Duration // goes with Fence

	// CursorSize gives each lease that many bytes of host memory of its own, which the consumer and
	// this process write and nobody else has: a file of zeros of fixed size (memfd_create(2)), of 16 MiB
	// at most. Before it sends the consumer anything, the server calls OnCursors with the file, on the
	// goroutine of the connection, which maps the file and takes care of the lease. The server owns the
	// file and closes it when the lease has ended. If OnCursors fails, the consumer is refused
	// ([ErrBusy]) with the text of the error.
	//
	// A consumer that does not take such memory ([AttachOptions].MaxCursors) is refused
	// ([ErrUnsupported]). The other side may write the memory at any time: copy first, then check.
	CursorSize uint64
	OnCursors  func(l *Lease, f *os.File) error // goes with CursorSize

	// Slots is into how many equal slots the application divides the memory. It goes to those who ask for a [List];
	// 0 says nothing.
	Slots int

	// OnEvent is called for each [Event] of the offer, several at once: on goroutines of the server, and on
	// those that call Offer, Supersede, Provide and Publish, which must hold no lock that OnEvent takes. It
	// should be quick: other consumers may wait for it. It may call the server and the offer, but must
	// neither close them nor wait for the offer's end. After that end it is not called any more.
	OnEvent func(Event)

	// OnLease is called with each lease when it begins, before the consumer is sent anything and
	// before OnEvent tells of it, perhaps before [Server.Offer] has returned. It can keep the lease, to
	// watch it and to take it back. It is called like OnEvent, and should not wait for the lease's end.
	OnLease func(*Lease)

	terms func(*serve.Terms) // tests'
}

// served returns what serves the offer.
func (o *OfferOptions) served(replaces bool) (*serve.Terms, error) {
	if o == nil {
		o = &OfferOptions{}
	}
	o = new(*o)
	if err := o.check(); err != nil {
		return nil, err
	}
	t := &serve.Terms{
		Access: o.Access, ReadOnly: o.Access == cu.ReadOnly, Pending: o.Pending, Data: o.Data, Leases: o.MaxConsumers, Idle: o.IdleTimeout, Grace: o.Grace,
		Verdict: o.Verdict, Synchronized: o.Synchronized, Replaces: replaces, Slots: uint32(o.Slots),
		OnEvent: func(serve.Event) {}, OnLease: func(*serve.Lease) {},
	}
	if t.Access == 0 {
		t.Access = cu.ReadOnly
	}
	if o.Fence != 0 {
		t.Fence = &serve.FenceTerms{Want: o.Fence, Within: o.FenceTimeout}
	}
	if o.CursorSize > 0 {
		t.Cursors = &serve.CursorTerms{Size: o.CursorSize, Begin: func(l *serve.Lease, f *os.File) error { return o.OnCursors((*Lease)(l), f) }}
	}
	if o.OnEvent != nil {
		t.OnEvent = func(e serve.Event) { o.OnEvent(eventOf(e)) }
	}
	if o.OnLease != nil {
		t.OnLease = func(l *serve.Lease) { o.OnLease((*Lease)(l)) }
	}
	if o.terms != nil {
		o.terms(t)
	}
	return t, nil
}

func (o *OfferOptions) check() error {
	switch {
	case len(o.Data) > MaxData:
		return fmt.Errorf("share: %d bytes of application data; %d are allowed", len(o.Data), MaxData)
	case o.MaxConsumers < 0, o.IdleTimeout < 0, o.Grace < 0:
		return fmt.Errorf("share: MaxConsumers %d, IdleTimeout %s, Grace %s: want 0, which is no bound, or more", o.MaxConsumers, o.IdleTimeout, o.Grace)
	case (o.Fence != 0) != (o.FenceTimeout > 0) || o.FenceTimeout < 0:
		return fmt.Errorf("share: a FenceTimeout of %s for the Fence %v: want both or neither", o.FenceTimeout, o.Fence)
	case o.CursorSize > maxCursors:
		return fmt.Errorf("share: a CursorSize of %d: want %d bytes at most", o.CursorSize, maxCursors)
	case uint64(o.Slots) > math.MaxUint32: // which negative ones are
		return fmt.Errorf("share: %d Slots: want 0 to %d", o.Slots, uint32(math.MaxUint32))
	case (o.CursorSize > 0) != (o.OnCursors != nil):
		return errors.New("share: want both CursorSize and OnCursors, or neither")
	case o.Fence != 0:
		return o.Fence.Check()
	}
	return nil
}
