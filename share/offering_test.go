package share

import (
	"context"
	"errors"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// offerFor offers buf until ctx ends, and returns why the offer is over.
func offerFor(ctx context.Context, srv *Server, name string, buf *vmm.Buffer, access cu.Access, opts ...OfferOptions) error {
	o, err := srv.Offer(name, buf, with(opts, access, nil))
	return lasts(ctx, srv, name, o, err)
}

func offerLegacyFor(ctx context.Context, srv *Server, name string, m *Legacy, opts ...OfferOptions) error {
	o, err := srv.Offer(name, m, first(opts))
	return lasts(ctx, srv, name, o, err)
}

// replaceFor is offerFor for a name that another offer may have.
func replaceFor(ctx context.Context, srv *Server, name string, buf *vmm.Buffer, access cu.Access, opts ...OfferOptions) error {
	o, err := srv.Offer(name, buf, with(opts, access, replacing))
	return lasts(ctx, srv, name, o, err)
}

func replaceLegacyFor(ctx context.Context, srv *Server, name string, m *Legacy, opts ...OfferOptions) error {
	o, err := srv.Offer(name, m, with(opts, 0, replacing))
	return lasts(ctx, srv, name, o, err)
}

// replacing is what Supersede does.
func replacing(o *serve.Terms) { o.Replaces = true }

// with adds to options.
func with(opts []OfferOptions, access cu.Access, terms func(*serve.Terms)) *OfferOptions {
	o := *first(opts)
	if o.Access == 0 {
		o.Access = access
	}
	switch {
	case o.terms == nil:
		o.terms = terms
	case terms != nil:
		o.terms = both(o.terms, terms)
	}
	return &o
}

// lasts waits for the end of an offer, which comes with that of ctx. What was expected is there, or has failed.
func lasts(ctx context.Context, srv *Server, name string, o *Offer, err error) error {
	defer unexpect(srv, name)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = o.Close() })
	defer stop()
	for !offered(srv, name) && !serve.IsClosed(o.Done()) {
		runtime.Gosched()
	}
	unexpect(srv, name)
	<-o.Done()
	if err := o.Err(); err != nil || !isServerClosed(srv) {
		return err
	}
	return ErrClosed
}

func isServerClosed(srv *Server) bool {
	o, err := srv.Offer("closed?", nil, &OfferOptions{Pending: true})
	_ = o.Close()
	return errors.Is(err, ErrClosed)
}

// named is a name of a server.
type named struct {
	srv  *Server
	name string
}

var expected, making sync.Map // named → *Offer

// expect makes consumers of a name wait, until an offer is made of it or has failed.
func expect(srv *Server, name string) {
	o, err := srv.Offer(name, nil, &OfferOptions{Pending: true, terms: replacing})
	if err != nil {
		return
	}
	if before, had := expected.Swap(named{srv, name}, o); had {
		_ = before.(*Offer).Close()
	}
}

func unexpect(srv *Server, name string) {
	if o, had := expected.LoadAndDelete(named{srv, name}); had {
		_ = o.(*Offer).Close()
	}
}

// working reports progress of what is expected or prepared.
func working(srv *Server, name string, done, total uint64) {
	for _, offers := range []*sync.Map{&making, &expected} {
		if o, had := offers.Load(named{srv, name}); had {
			o.(*Offer).ReportProgress(done, total)
			return
		}
	}
}

// A preparedOffer is a pending one.
type preparedOffer struct {
	*Offer
	at   named
	over atomic.Bool
}

func prepare(srv *Server, name string, src Source, access cu.Access, opts ...OfferOptions) (*preparedOffer, error) {
	with := with(opts, access, nil)
	with.Pending = true
	o, err := srv.Offer(name, src, with)
	if err != nil {
		unexpect(srv, name)
		return nil, err
	}
	p := &preparedOffer{Offer: o, at: named{srv, name}}
	making.Store(p.at, o)
	return p, nil
}

func prepareLegacy(srv *Server, name string, m *Legacy, opts ...OfferOptions) (*preparedOffer, error) {
	return prepare(srv, name, m, cu.ReadWrite, opts...)
}

// offer publishes, and waits for the end of the offer, which comes with that of ctx.
func (p *preparedOffer) offer(ctx context.Context) error {
	if p == nil || p.Offer == nil || !p.over.CompareAndSwap(false, true) {
		return ErrClosed
	}
	making.Delete(p.at)
	if err := p.Publish(ctx); err != nil {
		_ = p.Offer.Close()
		return err
	}
	return lasts(ctx, p.at.srv, p.at.name, p.Offer, nil)
}

// Close gives up an offer that was not made.
func (p *preparedOffer) Close() error {
	if p == nil || p.Offer == nil || !p.over.CompareAndSwap(false, true) {
		return nil
	}
	making.Delete(p.at)
	return p.Offer.Close()
}

// offerFiles offers descriptors in place of what has the name.
func offerFiles(srv *Server, name string, memory vmm.Descriptor, files []*os.File, access cu.Access, opts ...OfferOptions) (*Offer, error) {
	return srv.Offer(name, Descriptors{memory, files}, with(opts, access, replacing))
}

// offerResumed offers descriptors to consumers that have the memory mapped.
func offerResumed(srv *Server, name string, memory vmm.Descriptor, files []*os.File, access cu.Access, opts ...OfferOptions) (*Offer, error) {
	o := with(opts, access, func(o *serve.Terms) { o.Resumes = true })
	o.Synchronized = true // so that consumers find it when this returns
	return offerFiles(srv, name, memory, files, access, *o)
}

// leasesAs returns the leases of the offer that has a name.
func leasesAs(srv *Server, name string) []*Lease { return leasesOf(srv.server().Leases(name)) }

// PeerRefused is the kind of the events that a served has of its server's OnRefused.
const PeerRefused EventKind = 100

// A refusalLog tells those that serve of refused peers.
type refusalLog struct {
	mu sync.Mutex
	to []*served
}

var refusalLogs sync.Map // *Server → *refusalLog

func (l *refusalLog) see(peer sock.Peer, err error) {
	l.mu.Lock()
	to := slices.Clone(l.to)
	l.mu.Unlock()
	for _, s := range to {
		s.see(Event{Kind: PeerRefused, Peer: peer, Err: err})
	}
}

func (l *refusalLog) tell(s *served) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.to = append(l.to, s)
}
