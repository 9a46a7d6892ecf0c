package keeper

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gpufd/gpufd/keeper/internal/lean"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
)

// A Server is a keeper. It holds descriptors of GPU memory and decides who gets them; it
// loads no libcuda and maps no memory. All that must outlive it is in the fd store, a
// process of its own: a server that dies at any moment is followed by one that goes on
// where it was. It is safe for concurrent use.
type Server struct {
	opts    Options
	vault   *vault
	readers *share.Server
	control *sock.Listener
	metrics *metrics
	since   time.Time

	ctx  context.Context
	stop context.CancelCauseFunc
	work sync.WaitGroup

	mu       sync.Mutex
	state    *state.State
	offers   map[string]*offer // by the name that readers know it by
	retired  []*offer          // whose name is another's, and which have leases
	watchers map[chan Event]string
	holders  *holders

	processes *processes
}

// Open starts a keeper: it finds the fd store or starts one, takes up what is in there,
// and listens. The caller owns the Server, and ends it with Close; what it keeps stays in
// the fd store. ctx bounds the start.
//
// Errors: [sock.ErrInUse] for a socket that a living keeper has; those of
// [share.Listen]; a manifest that cannot be read, which is left as it is.
func Open(ctx context.Context, opts Options) (*Server, error) {
	if err := opts.check(); err != nil {
		return nil, err
	}
	vault, err := openVault(ctx, opts.Socket+storeSuffix, opts.Store)
	if err != nil {
		return nil, err
	}
	s := &Server{opts: opts, vault: vault, since: time.Now(), offers: map[string]*offer{}, watchers: map[chan Event]string{}}
	s.ctx, s.stop = context.WithCancelCause(context.Background())
	s.holders, s.processes = newHolders(s), newProcesses(s)
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// start takes up what the store has, and serves.
func (s *Server) start(ctx context.Context) error {
	manifest, err := s.vault.store.Manifest(ctx)
	if err != nil {
		return fmt.Errorf("reading what the fd store keeps: %w", err)
	}
	s.state = state.New(s.opts.Policy)
	if manifest != nil {
		if s.state, err = state.Decode(manifest, s.opts.Policy); err != nil {
			return fmt.Errorf("reading what the fd store keeps: %w", err)
		}
	}
	if err := s.dropStrays(ctx); err != nil {
		return err
	}
	s.metrics = newMetrics(s)
	if err := s.listen(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	err = s.recover(ctx)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if s.opts.Metrics != "" {
		if err := s.serveMetrics(s.opts.Metrics); err != nil {
			return err
		}
	}
	s.readers.Start()
	s.work.Go(s.acceptControl)
	s.work.Go(s.holders.run)
	s.work.Go(s.tend)
	s.work.Go(func() { lean.Stay(s.ctx) })
	return nil
}

// dropStrays gives up what a keeper put into the store and died before it was named.
func (s *Server) dropStrays(ctx context.Context) error {
	named := s.state.Named()
	var strays []uint64
	for id := range s.vault.files {
		if !named[state.ID(id)] && id < firstOwnID {
			strays = append(strays, id)
		}
	}
	return s.vault.drop(ctx, strays...)
}

// mutate changes what is kept: all of what f does, or nothing. The store has the change
// before anybody hears of it.
func (s *Server) mutate(ctx context.Context, f func(*state.State) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.state.Clone()
	err := f(next)
	var no *Error
	if err != nil && !(errors.As(err, &no) && no.Changed) {
		return err
	}
	return errors.Join(err, s.commit(ctx, next))
}

// commit runs with mu held.
func (s *Server) commit(ctx context.Context, next *state.State) error {
	dropped := next.Dropped()
	if err := s.vault.swap(ctx, next.Encode()); err != nil {
		return err
	}
	s.state = next
	s.processes.forget(dropped)
	return errors.Join(s.reconcile(), s.vault.drop(ctx, ids(dropped)...))
}

func ids(from []state.ID) []uint64 {
	to := make([]uint64, len(from))
	for i, id := range from {
		to[i] = uint64(id)
	}
	return to
}

// tend does what comes with time: tickets, retired versions and names expire.
func (s *Server) tend() {
	tick := time.NewTicker(s.opts.tick())
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.storeDone():
			s.replaceStore()
		case <-tick.C:
			s.expire()
		}
	}
}

func (s *Server) expire() {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.state.Clone()
	expired, retired := next.Expire(now), next.Retire(now)
	if !expired && !retired {
		return
	}
	if err := s.commit(s.ctx, next); err != nil {
		s.log("%v", err)
	}
}

func (s *Server) log(format string, a ...any) {
	if s.opts.Log != nil {
		s.opts.Log(fmt.Sprintf(format, a...))
	}
}

// Done is closed when the server has failed or was closed; Err says why.
func (s *Server) Done() <-chan struct{} { return s.ctx.Done() }

// Err says why the server has ended, after Done: [share.ErrClosed] by Close.
func (s *Server) Err() error { return context.Cause(s.ctx) }

// Close ends the server, and leaves in the fd store what it keeps, with the sockets: a
// server that is opened again goes on with them. Consumers that connect meanwhile wait.
func (s *Server) Close() error {
	s.stop(share.ErrClosed)
	var errs []error
	if s.control != nil {
		errs = append(errs, s.control.Close())
	}
	s.mu.Lock()
	offers := append(s.retired, values(s.offers)...)
	s.retired, s.offers = nil, map[string]*offer{}
	s.mu.Unlock()
	if s.readers != nil {
		errs = append(errs, s.readers.Close())
	}
	for _, o := range offers {
		errs = append(errs, o.standing.Close())
	}
	s.work.Wait()
	return errors.Join(append(errs, s.vault.Close())...)
}

func values(m map[string]*offer) (all []*offer) {
	for _, o := range m {
		all = append(all, o)
	}
	return all
}
