package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// Options are named With… if they set something, and On… if they take a function to call.
// Each can be passed only where it applies.

// A ListenOption changes what [Listen] does.
type ListenOption interface{ listen(*serve.Options) }

// An AttachOption changes what [Attach] does.
type AttachOption interface{ attach(*attachOptions) }

// A PeerOption is about the other side: [Listen], [Attach] and [List] take it.
type PeerOption func(*serve.PeerOptions)

func (f PeerOption) listen(o *serve.Options) { f.apply(&o.PeerOptions) }
func (f PeerOption) attach(o *attachOptions) { f.apply(&o.PeerOptions) }

func (f PeerOption) apply(o *serve.PeerOptions) {
	if f != nil {
		f(o)
	}
}

type listenOption func(*serve.Options)

func (f listenOption) listen(o *serve.Options) { f(o) }

type attachOption func(*attachOptions)

func (f attachOption) attach(o *attachOptions) { f(o) }

// WithTimeout bounds each step of a conversation. The default is [DefaultTimeout].
func WithTimeout(d time.Duration) PeerOption { return func(o *serve.PeerOptions) { o.Timeout = d } }

// WithPolicy sets which peers a producer admits (others get [RefusedPolicy]), or whose
// offers a consumer takes (others fail with [sock.ErrRefused]). The default is this
// process's effective user; see [sock.Policy].
func WithPolicy(p sock.Policy) PeerOption { return func(o *serve.PeerOptions) { o.Policy = p } }

func checkPeer(o *serve.PeerOptions) error {
	if o.Timeout <= 0 {
		return fmt.Errorf("share: WithTimeout(%s): want more than 0", o.Timeout)
	}
	return nil
}

// WithMode sets the permissions of the socket file, 0600 by default; see
// [sock.WithMode]. To connect, other users need write permission on it and search
// permission on its directory.
func WithMode(mode os.FileMode) ListenOption {
	return listenOption(func(o *serve.Options) { o.Sock = append(o.Sock, sock.WithMode(mode)) })
}

// WithAuthorize makes f decide which of the peers that the policy admits get an offer. The
// offer is what the peer would get, with the access that it asks for (always [ReadWrite]
// for legacy memory). Its Data is nil if there are more than 4 KiB, and whole otherwise.
//
// f is called once for each consumer and offer, also for prepared offers, before the
// consumer is sent anything of it. For a consumer that waits, f is called when the offer is
// there; until then the consumer learns only of progress ([Server.Working]). If the offer is
// replaced before f has admitted the consumer, f is called again with the new one. For a consumer that
// waits for newer memory ([WithWait]), f is called with the known memory before the wait,
// and with the newer one after it: so a peer that is not admitted cannot find out the
// generation by asking for larger ones.
//
// A peer that asks for a list ([List]) sees the offers that f admits it to: f is called for
// each, with Access 0.
//
// An error of f refuses the peer ([RefusedPolicy]). The peer does not see the error; the
// functions of [OnEvent] do ([PeerRefused]).
//
// f runs on goroutines of the server, for several peers at once, and delays no other
// peer. It may call the server, but must not close it: Close waits for f. The peer waits
// no longer than its own timeout.
func WithAuthorize(f func(peer sock.Peer, offer Offer) error) ListenOption {
	return listenOption(func(o *serve.Options) {
		o.Decides, o.Allow = true, nil
		if f != nil {
			o.Allow = func(peer sock.Peer, record wire.Offer, access cu.Access) error {
				return f(peer, offerOf(record, access))
			}
		}
	})
}

// WithParts calls f when a peer asks for a name that is not offered. If the name stands for memory
// that is offered in parts, f returns the names of those that the peer may have. Then the peer is
// refused with them ([RefusedParts]), and [Follow] does not wait. f runs on the goroutine of
// the connection.
func WithParts(f func(peer sock.Peer, name string) []string) ListenOption {
	return listenOption(func(o *serve.Options) { o.Parts = f })
}

// WithAuthorizeName asks f first of all whether a peer may ask for a name with that access, whether it
// is offered or not. A peer that f does not admit is turned away at once, with the same words in both
// cases ([RefusedPolicy]), so it does not learn which names there are. A peer that names none hears that
// there is no such offer, if f does not admit it to the only one. A list has the offers that f admits to
// with [ReadOnly]. f is called as the function of [WithAuthorize] is.
func WithAuthorizeName(f func(peer sock.Peer, name string, access cu.Access) error) ListenOption {
	return listenOption(func(o *serve.Options) { o.AllowName = f })
}

// WithInherited makes Listen go on with a socket that [Server.Files] returned; see
// [sock.WithInherited].
func WithInherited(files []*os.File) ListenOption {
	return listenOption(func(o *serve.Options) { o.Sock = append(o.Sock, sock.WithInherited(files)) })
}

// WithConnections bounds the connections that are served at once, 1,024 by
// default; further ones are refused ([RefusedBusy]). Consumers that wait for an
// offer count.
func WithConnections(n int) ListenOption {
	return listenOption(func(o *serve.Options) { o.Connections = n })
}

// WithConnectionsPerPeer bounds the connections of one process that are served at once,
// 256 by default; further ones are refused ([RefusedBusy]). Processes without a pid here,
// because they are in other PID namespaces, count as one process for each user.
func WithConnectionsPerPeer(n int) ListenOption {
	return listenOption(func(o *serve.Options) { o.PerPeer = n })
}

func newListenOptions(opts []ListenOption) (*serve.Options, error) {
	o := serve.NewOptions()
	for _, opt := range opts {
		if opt != nil {
			opt.listen(o)
		}
	}
	if o.Decides && o.Allow == nil {
		return nil, errors.New("share: WithAuthorize without a function (nil): nobody would decide who gets an offer")
	}
	if o.Connections < 1 || o.PerPeer < 1 {
		return nil, fmt.Errorf("share: WithConnections(%d), WithConnectionsPerPeer(%d): want 1 or more", o.Connections, o.PerPeer)
	}
	return o, checkPeer(&o.PeerOptions)
}

// ReadOnly and ReadWrite are the kinds of access that a consumer may ask for.
const (
	ReadOnly  = cu.ReadOnly
	ReadWrite = cu.ReadWrite
)

// An OfferOption changes what [Server.Offer] and [Server.Prepare] do.
type OfferOption func(*serve.Terms)

// WithData adds up to [MaxData] bytes of the application's own to the offer. They are
// copied. More than 4 KiB are copied, once for all consumers, to a file of memory that
// nobody can change (memfd_create(2), F_ADD_SEALS) and that lasts until the offer ends; a
// consumer that is too old to take such a file is refused ([RefusedUnsupported]).
func WithData(b []byte) OfferOption { return func(o *serve.Terms) { o.Data = b } }

// WithLeases admits n consumers in all, and makes Offer return when the last of
// them has gone. The default, 0, is no bound.
func WithLeases(n int) OfferOption { return func(o *serve.Terms) { o.Leases = n } }

// WithIdleTimeout makes Offer return [ErrNoConsumer] after d without a consumer. The
// default, 0, is no bound.
func WithIdleTimeout(d time.Duration) OfferOption { return func(o *serve.Terms) { o.Idle = d } }

// WithVerdict demands that every consumer reports what it found
// ([Attachment.Report]), and shows that it is at work ([Attachment.Progress]). Without
// this a consumer that has mapped the memory may be silent for as long as it likes.
func WithVerdict() OfferOption { return func(o *serve.Terms) { o.Verdict = true } }

// WithSynchronized says that the caller has waited for the work on the memory,
// with [cu.Device.Synchronize] or otherwise. So Offer does not wait, which saves
// driver calls of some microseconds each.
func WithSynchronized() OfferOption { return func(o *serve.Terms) { o.Synchronized = true } }

// WithGrace bounds how long leases go on after another offer has replaced this one
// ([Server.Replace]): after d the remaining ones are revoked ([ErrRevoked]). The default, 0,
// is no bound: they go on until their consumers leave, or the context of this offer is done.
func WithGrace(d time.Duration) OfferOption { return func(o *serve.Terms) { o.Grace = d } }

// OnEvent calls f for each [Event] of the offer, on the goroutine of Offer and on those of
// the server, several at once. f should be quick: other consumers may wait for
// it. It may call the server, but must neither close it nor wait for the offer's end.
// After that end, f is not called any more.
func OnEvent(f func(Event)) OfferOption {
	return func(o *serve.Terms) {
		if o.OnEvent = nil; f != nil {
			o.OnEvent = func(e serve.Event) { f(Event(e)) }
		}
	}
}

// OnLease calls f with each lease when it begins, before the consumer is sent anything
// and before [OnEvent] tells of it. f can keep the lease, to watch it and to take it back.
// It is called like the function of OnEvent, and should not wait for the lease's end.
func OnLease(f func(*Lease)) OfferOption {
	return func(o *serve.Terms) {
		if o.OnLease = nil; f != nil {
			o.OnLease = func(l *serve.Lease) { f((*Lease)(l)) }
		}
	}
}

func newOfferOptions(opts []OfferOption) (*serve.Terms, error) {
	o := &serve.Terms{OnEvent: func(serve.Event) {}, OnLease: func(*serve.Lease) {}}
	for _, f := range opts {
		if f != nil {
			f(o)
		}
	}
	switch {
	case o.OnEvent == nil || o.OnLease == nil:
		return nil, errors.New("share: OnEvent or OnLease without a function (nil)")
	case len(o.Data) > MaxData:
		return nil, fmt.Errorf("share: %d bytes of application data; %d are allowed", len(o.Data), MaxData)
	case o.Stands && (o.Leases != 0 || o.Idle != 0 || o.Grace != 0):
		return nil, errStanding
	case o.Leases < 0:
		return nil, fmt.Errorf("share: WithLeases(%d): want 0, which is no bound, or more", o.Leases)
	case o.Idle < 0:
		return nil, fmt.Errorf("share: WithIdleTimeout(%s): want 0, which is no bound, or more", o.Idle)
	case o.Grace < 0:
		return nil, fmt.Errorf("share: WithGrace(%s): want 0, which is no bound, or more", o.Grace)
	}
	return o, errors.Join(checkFence(o.Fence), checkCursors(o.Cursors))
}

// WithFence makes Offer return only when no consumer writes the memory any more; until
// then its buffer cannot be closed. Offer waits for each consumer whose lease let it write
// to be fenced as wanted. [Fenced] requires the death of its process. For [Released] its
// word is enough ([Attachment.Close], [Attachment.Release]): consumers are told that the
// producer waits for them ([Offer.AwaitsRelease]), and an offer that ends keeps the
// connections of those that may write until they have released the memory.
//
// An Offer or Replace of the same memory by the same server, which may have grown, waits for
// that, too, if the first offer has ended or other memory has its name. If it may still be
// written in the end, both fail with the same error. [Server.Prepare] and [Server.OfferFiles]
// do not wait, and fail with [ErrInUse].
//
// ctx and [Server.Close] bound the wait. Then Offer returns a [*FenceError], which names
// the consumers that may still write, and matches [ErrNoFence] where no wait could tell.
// Offer does not wait for consumers with read-only leases: see docs/security.md.
func WithFence(ctx context.Context, want Fence) OfferOption {
	return func(o *serve.Terms) { o.Fence = &serve.FenceTerms{Ctx: ctx, Want: want} }
}

func checkFence(f *serve.FenceTerms) error {
	switch {
	case f == nil:
		return nil
	case f.Ctx == nil:
		return errors.New("share: WithFence without a context (nil)")
	}
	return serve.CheckFence(f.Want)
}

// errStanding refuses the options of offers that end by themselves.
var errStanding = errors.New("share: WithLeases, WithIdleTimeout and WithGrace end an offer, and that of OfferFiles lasts until Close")
