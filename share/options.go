package share

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/sock"
)

// Options are named With… if they set something, and On… if they have a function
// called. Each can be given where it can apply, and nowhere else.

// A ListenOption changes what [Listen] does.
type ListenOption interface{ listen(*listenOptions) }

// An AttachOption changes what [Attach] does.
type AttachOption interface{ attach(*attachOptions) }

// A PeerOption is about the other side, whichever that is: [Listen] and [Attach]
// both take it.
type PeerOption func(*peerOptions)

func (f PeerOption) listen(o *listenOptions) { f.apply(&o.peerOptions) }
func (f PeerOption) attach(o *attachOptions) { f.apply(&o.peerOptions) }

func (f PeerOption) apply(o *peerOptions) {
	if f != nil {
		f(o)
	}
}

type listenOption func(*listenOptions)

func (f listenOption) listen(o *listenOptions) { f(o) }

type attachOption func(*attachOptions)

func (f attachOption) attach(o *attachOptions) { f(o) }

type peerOptions struct {
	timeout time.Duration
	goodbye time.Duration // goodbye, but in tests
	rate    int
	policy  sock.Policy
	process func(*sock.Conn) (*sock.Process, error) // Process, but in tests
}

func newPeerOptions() peerOptions {
	return peerOptions{timeout: DefaultTimeout, goodbye: goodbye, rate: defaultRate, process: (*sock.Conn).Process}
}

// WithTimeout bounds each step of a conversation. The default is [DefaultTimeout].
func WithTimeout(d time.Duration) PeerOption { return func(o *peerOptions) { o.timeout = d } }

// WithPolicy says which peers a producer admits ([RefusedPolicy] for others), or
// whose offers a consumer takes ([sock.ErrRefused] for others). The default is this
// process' effective user; see [sock.Policy].
func WithPolicy(p sock.Policy) PeerOption { return func(o *peerOptions) { o.policy = p } }

// WithRecordRate bounds the records that are taken of one peer, 1,000 a second by
// default, which may come at once. A peer that sends more is refused
// ([RefusedRate], [ErrRate]) and disconnected. 0 is no bound.
func WithRecordRate(perSecond int) PeerOption { return func(o *peerOptions) { o.rate = perSecond } }

func (o *peerOptions) check() error {
	switch {
	case o.timeout <= 0:
		return fmt.Errorf("share: WithTimeout(%s): a step takes some time", o.timeout)
	case o.rate < 0:
		return fmt.Errorf("share: WithRecordRate(%d): want 0, which is no bound, or more", o.rate)
	}
	return nil
}

type listenOptions struct {
	peerOptions
	connections int
	perPeer     int
	decides     bool                         // somebody was to decide
	allow       func(sock.Peer, Offer) error // or nil
	sock        []sock.ListenOption
}

// WithMode sets the permissions of the socket's file, 0600 by default; see
// [sock.WithMode]. Other users need them to connect, beside the right to search
// the directory.
func WithMode(mode os.FileMode) ListenOption {
	return listenOption(func(o *listenOptions) { o.sock = append(o.sock, sock.WithMode(mode)) })
}

// WithAuthorize has f decide who gets an offer, of those whom the policy lets in.
// The offer is what would be given, with the access that the peer asks for, which is
// [ReadWrite] for legacy memory whatever it asks for. Its Data is nil if that is more than
// 4 KiB, and whole otherwise. f is called once for each
// consumer and offer, before the consumer is sent anything of it, prepared offers
// included. About a consumer that waits it is called when the offer is there; until
// then the consumer hears of no more than progress ([Server.Working]). About a consumer
// whose offer is replaced before f has answered it is called again, with the new one.
//
// A peer that asks for a list ([List]) hears of those offers that f lets it read: f is
// called for each as if the peer wanted that.
//
// An error refuses the peer ([RefusedPolicy]). The peer is told no more than that;
// the functions of [OnEvent] hear the error ([PeerRefused]).
//
// f runs on the goroutine of its connection, of several at once, and keeps nobody
// else waiting. It may call the server, but not close it: Close waits for it. The
// peer that it is about waits no longer than its own timeout.
func WithAuthorize(f func(peer sock.Peer, offer Offer) error) ListenOption {
	return listenOption(func(o *listenOptions) { o.decides, o.allow = true, f })
}

// WithInherited has Listen go on with a socket that [Server.Files] gave; see
// [sock.WithInherited].
func WithInherited(files []*os.File) ListenOption {
	return listenOption(func(o *listenOptions) { o.sock = append(o.sock, sock.WithInherited(files)) })
}

// WithBacklog bounds the connections that wait to be accepted, 1,024 by default; see
// [sock.WithBacklog].
func WithBacklog(n int) ListenOption {
	return listenOption(func(o *listenOptions) { o.sock = append(o.sock, sock.WithBacklog(n)) })
}

// WithConnections bounds the connections that are served at once, 1,024 by
// default; further ones are refused ([RefusedBusy]). Consumers that wait for an
// offer count.
func WithConnections(n int) ListenOption {
	return listenOption(func(o *listenOptions) { o.connections = n })
}

// WithConnectionsPerPeer bounds the connections that are served at once of one
// process, 256 by default; further ones are refused ([RefusedBusy]). The processes
// that have no pid here, because they are in other PID namespaces, count as one for
// each user.
func WithConnectionsPerPeer(n int) ListenOption {
	return listenOption(func(o *listenOptions) { o.perPeer = n })
}

func newListenOptions(opts []ListenOption) (*listenOptions, error) {
	o := &listenOptions{peerOptions: newPeerOptions(), connections: defaultConnections, perPeer: defaultConnectionsPerPeer}
	for _, opt := range opts {
		if opt != nil {
			opt.listen(o)
		}
	}
	if o.decides && o.allow == nil {
		return nil, errors.New("share: WithAuthorize without a function (nil): nobody would decide who gets an offer")
	}
	if o.connections < 1 || o.perPeer < 1 {
		return nil, fmt.Errorf("share: %d connections, %d of a process: a server that serves takes one at least", o.connections, o.perPeer)
	}
	return o, o.check()
}

// What consumers may ask for.
const (
	ReadOnly  = cu.ReadOnly
	ReadWrite = cu.ReadWrite
)

// An OfferOption changes what [Server.Offer] and [Server.Prepare] do.
type OfferOption func(*offerOptions)

type offerOptions struct {
	data         []byte
	leases       int
	idle         time.Duration
	verdict      bool
	synchronized bool
	replaces     bool // it takes its name from the offer that has it
	stands       bool // until it is closed
	grace        time.Duration
	fence        *fenceOption
	onEvent      func(Event)
	onLease      func(*Lease)
}

// WithData has the offer carry up to [MaxData] bytes of the application's own. They are
// copied. More than 4 KiB are copied to a file of memory that nobody can change
// (memfd_create(2), F_ADD_SEALS), once for all consumers and until the offer ends; a
// consumer that is older than that is refused ([RefusedUnsupported]).
func WithData(b []byte) OfferOption { return func(o *offerOptions) { o.data = b } }

// WithLeases admits n consumers in all and has Offer return when the last of
// them has gone. The default, 0, is no bound.
func WithLeases(n int) OfferOption { return func(o *offerOptions) { o.leases = n } }

// WithIdleTimeout has Offer return [ErrNoConsumer] when there was no consumer
// for so long. The default, 0, is no bound.
func WithIdleTimeout(d time.Duration) OfferOption { return func(o *offerOptions) { o.idle = d } }

// WithVerdict demands of every consumer that it reports what it found, and
// shows by progress records that it is at work on it. Without this a consumer
// that has mapped the memory may be silent for as long as it likes.
func WithVerdict() OfferOption { return func(o *offerOptions) { o.verdict = true } }

// WithSynchronized says that the caller has waited for the work on the memory,
// with [cu.Device.Synchronize] or otherwise, so that Offer need not: each of the
// driver calls for that takes some microseconds.
func WithSynchronized() OfferOption { return func(o *offerOptions) { o.synchronized = true } }

// WithGrace bounds how long leases go on when another offer has replaced this one
// ([Server.Replace]): those that have not ended after d are revoked ([ErrRevoked]). The
// default, 0, is no bound: they go on until their consumers leave, or the context of this
// offer is done.
func WithGrace(d time.Duration) OfferOption { return func(o *offerOptions) { o.grace = d } }

// OnEvent calls f for each [Event] of the offer, on the goroutines of Offer and of
// the connections, several at once. f should not take long: other consumers may be
// waiting for it. It may call the server, but neither close it nor wait for the
// offer's end, after which it is not called any more.
func OnEvent(f func(Event)) OfferOption { return func(o *offerOptions) { o.onEvent = f } }

// OnLease calls f with each lease when it begins, before the consumer is sent anything
// and before f of [OnEvent] hears of it, to watch it and to take it back. It is called
// like that one, and should not wait for the lease's end.
func OnLease(f func(*Lease)) OfferOption { return func(o *offerOptions) { o.onLease = f } }

func newOfferOptions(opts []OfferOption) (*offerOptions, error) {
	o := &offerOptions{onEvent: func(Event) {}, onLease: func(*Lease) {}}
	for _, f := range opts {
		if f != nil {
			f(o)
		}
	}
	switch {
	case o.onEvent == nil || o.onLease == nil:
		return nil, errors.New("share: OnEvent or OnLease without a function (nil)")
	case len(o.data) > MaxData:
		return nil, fmt.Errorf("share: %d bytes of application data; %d are allowed", len(o.data), MaxData)
	case o.stands && (o.leases != 0 || o.idle != 0 || o.grace != 0):
		return nil, errStanding
	case o.leases < 0:
		return nil, fmt.Errorf("share: WithLeases(%d): want 0, which is no bound, or more", o.leases)
	case o.idle < 0:
		return nil, fmt.Errorf("share: WithIdleTimeout(%s): want 0, which is no bound, or more", o.idle)
	case o.grace < 0:
		return nil, fmt.Errorf("share: WithGrace(%s): want 0, which is no bound, or more", o.grace)
	}
	return o, o.fence.check()
}
