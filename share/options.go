package share

import (
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
// f is called once for each consumer and offer, also for pending offers, before the
// consumer is sent anything of it. For a consumer that waits, f is called when the offer is
// there; until then the consumer learns only of progress ([Offer.ReportProgress]). If the offer is
// replaced before f has admitted the consumer, f is called again with the new one. For a consumer that
// waits for newer memory ([WithWait]), f is called with the known memory before the wait,
// and with the newer one after it: so a peer that is not admitted cannot find out the
// generation by asking for larger ones.
//
// A peer that asks for a list ([List]) sees the offers that f admits it to: f is called for
// each, with Access 0.
//
// An error of f refuses the peer ([RefusedPolicy]). The peer does not see the error; the
// function of [OnRefused] does.
//
// f runs on goroutines of the server, for several peers at once, and delays no other
// peer. It may call the server, but must not close it: Close waits for f. The peer waits
// no longer than its own timeout.
func WithAuthorize(f func(peer sock.Peer, offer OfferInfo) error) ListenOption {
	return listenOption(func(o *serve.Options) {
		o.Decides, o.Allow = true, nil
		if f != nil {
			o.Allow = func(peer sock.Peer, record wire.Offer, access cu.Access) error {
				return f(peer, infoOf(record, access))
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

// OnRefused calls f once for each peer that is turned away and gets no lease, on goroutines of the
// server, several at once. f must not close the server.
func OnRefused(f func(peer sock.Peer, err error)) ListenOption {
	return listenOption(func(o *serve.Options) { o.OnRefused = f })
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

// An OfferOption changes what [Server.Offer] does.
type OfferOption interface{ offer(*serve.Terms) }

type offerOption func(*serve.Terms)

func (f offerOption) offer(o *serve.Terms) { f(o) }

// An AccessOption is a kind of access: [Server.Offer] and [Attach] take it.
type AccessOption cu.Access

func (a AccessOption) offer(o *serve.Terms)    { o.Access = cu.Access(a) }
func (a AccessOption) attach(o *attachOptions) { o.access = cu.Access(a) }

// WithAccess sets the most that consumers of an offer may ask for, or what the device may do with
// the memory that is attached; the offer has to allow that. The default is [ReadOnly]. Legacy
// memory is always [ReadWrite]: see [Attachment.Access] and [WithHandle].
func WithAccess(a cu.Access) AccessOption { return AccessOption(a) }

// WithPending says that the data is not there yet: [Offer.Publish] does when it is.
func WithPending() OfferOption { return offerOption(func(o *serve.Terms) { o.Pending = true }) }

// WithData adds up to [MaxData] bytes of the application's own to the offer. They are
// copied. More than 4 KiB are copied, once for all consumers, to a file of memory that
// nobody can change (memfd_create(2), F_ADD_SEALS) and that lasts until the offer ends; a
// consumer that is too old to take such a file is refused ([RefusedUnsupported]).
func WithData(b []byte) OfferOption { return offerOption(func(o *serve.Terms) { o.Data = b }) }

// WithLeases admits n consumers in all, and ends the offer when the last of
// them has gone. The default, 0, is no bound.
func WithLeases(n int) OfferOption { return offerOption(func(o *serve.Terms) { o.Leases = n }) }

// WithIdleTimeout ends the offer after d without a consumer ([ErrNoConsumer]). The
// default, 0, is no bound.
func WithIdleTimeout(d time.Duration) OfferOption {
	return offerOption(func(o *serve.Terms) { o.Idle = d })
}

// WithVerdict demands that every consumer reports what it found
// ([Attachment.Report]), and shows that it is at work ([Attachment.Progress]). Without
// this a consumer that has mapped the memory may be silent for as long as it likes.
func WithVerdict() OfferOption { return offerOption(func(o *serve.Terms) { o.Verdict = true }) }

// WithSynchronized says that the caller has waited for the work on the memory,
// with [cu.Device.Synchronize] or otherwise. So Offer does not wait, which saves
// driver calls of some microseconds each.
func WithSynchronized() OfferOption {
	return offerOption(func(o *serve.Terms) { o.Synchronized = true })
}

// WithGrace bounds how long leases go on after another offer has replaced this one
// ([Offer.Supersede]): after d the remaining ones end ([ErrSuperseded]). The default, 0,
// is no bound: they go on until their consumers leave, or this offer is closed.
func WithGrace(d time.Duration) OfferOption { return offerOption(func(o *serve.Terms) { o.Grace = d }) }

// OnEvent calls f for each [Event] of the offer, on the goroutine of Publish and on those of
// the server, several at once. f should be quick: other consumers may wait for
// it. It may call the server, but must neither close it nor wait for the offer's end.
// After that end, f is not called any more.
func OnEvent(f func(Event)) OfferOption {
	return offerOption(func(o *serve.Terms) {
		if o.OnEvent = nil; f != nil {
			o.OnEvent = func(e serve.Event) { f(Event(e)) }
		}
	})
}

// OnLease calls f with each lease when it begins, before the consumer is sent anything
// and before [OnEvent] tells of it, perhaps before [Server.Offer] has returned. f can keep the lease, to
// watch it and to take it back.
// It is called like the function of OnEvent, and should not wait for the lease's end.
func OnLease(f func(*Lease)) OfferOption {
	return offerOption(func(o *serve.Terms) {
		if o.OnLease = nil; f != nil {
			o.OnLease = func(l *serve.Lease) { f((*Lease)(l)) }
		}
	})
}

func newOfferOptions(opts []OfferOption) (*serve.Terms, error) {
	o := &serve.Terms{Access: ReadOnly, OnEvent: func(serve.Event) {}, OnLease: func(*serve.Lease) {}}
	for _, opt := range opts {
		if opt != nil {
			opt.offer(o)
		}
	}
	switch {
	case o.OnEvent == nil || o.OnLease == nil:
		return nil, errors.New("share: OnEvent or OnLease without a function (nil)")
	case len(o.Data) > MaxData:
		return nil, fmt.Errorf("share: %d bytes of application data; %d are allowed", len(o.Data), MaxData)
	case o.Leases < 0:
		return nil, fmt.Errorf("share: WithLeases(%d): want 0, which is no bound, or more", o.Leases)
	case o.Idle < 0:
		return nil, fmt.Errorf("share: WithIdleTimeout(%s): want 0, which is no bound, or more", o.Idle)
	case o.Grace < 0:
		return nil, fmt.Errorf("share: WithGrace(%s): want 0, which is no bound, or more", o.Grace)
	}
	return o, errors.Join(checkFence(o.Fence), checkCursors(o.Cursors))
}

// WithFence makes the offer be done only when no consumer writes the memory any more; until then its
// buffer cannot be closed. It waits for each consumer whose lease let it write to be fenced as wanted,
// no longer than within. [Fenced] requires the death of its process. For [Released] its word is enough
// ([Attachment.Close], [Attachment.Release]): consumers are told that the producer waits for them
// ([OfferInfo.AwaitsRelease]), and an offer that ends keeps the connections of those that may write
// until they have released the memory.
//
// An offer of the same memory by the same server, which may have grown, waits for that, too, if the
// first offer has ended or other memory has its name. If it may still be written in the end, both fail
// with the same error. A pending offer does not wait, and fails with [ErrInUse].
//
// If the wait is not over in time, or the server is closed, the error is a [*FenceError], which names
// the consumers that may still write, and matches [ErrNoFence] where no wait could tell. Nobody waits
// for consumers with read-only leases: see docs/security.md.
func WithFence(want Fence, within time.Duration) OfferOption {
	return offerOption(func(o *serve.Terms) { o.Fence = &serve.FenceTerms{Want: want, Within: within} })
}

func checkFence(f *serve.FenceTerms) error {
	switch {
	case f == nil:
		return nil
	case f.Within <= 0:
		return fmt.Errorf("share: WithFence(%s): want more than 0", f.Within)
	}
	return serve.CheckFence(f.Want)
}
