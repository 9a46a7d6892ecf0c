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
	missed   []state.HoldID // that were held when this server began

	processes *processes
	attaching attaching
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
	err = s.recover()
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
func (s *Server) mutate(f func(*state.State) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.state.Clone()
	err := f(next)
	var no *Error
	if err != nil && !(errors.As(err, &no) && no.Changed) {
		return err
	}
	return errors.Join(err, s.commit(next))
}

// commit makes next the state, or returns an error and leaves the state as it is. What
// goes wrong behind that is said and loses nothing: the next keeper finds next. It runs
// with mu held.
func (s *Server) commit(next *state.State) error {
	if err := s.ctx.Err(); err != nil {
		return errEnding
	}
	leases := s.holders.into(next)
	next.Retire(time.Now())
	dropped := next.Dropped()
	ctx, cancel := s.step()
	defer cancel()
	at("swap")
	err := s.vault.swap(ctx, next.Encode())
	s.holders.keep(leases, err)
	if err != nil {
		s.doubt(err)
		return err
	}
	at("swapped")
	s.state = next
	s.processes.forget(dropped)
	s.reconcile()
	at("drop")
	s.drop(ids(dropped)...)
	at("dropped")
	return nil
}

// errEnding says that this keeper changes nothing any more: clients hear it as the end of
// their connection, and go on with the next keeper.
var errEnding = fmt.Errorf("keeper: ending: %w", share.ErrClosed)

// step bounds a conversation with the store. The end of the server does not cut it off, for
// then nobody would know what the store has taken.
func (s *Server) step() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(s.ctx), s.opts.Timeout)
}

// doubt ends a server that cannot know whether the store has taken a change. The next
// one reads it there.
func (s *Server) doubt(err error) {
	if errors.Is(err, context.DeadlineExceeded) {
		s.stop(fmt.Errorf("it is not known what the fd store has, start the keeper again: %w", err))
	}
}

// drop gives up what no manifest names. It runs with mu held.
func (s *Server) drop(ids ...uint64) {
	ctx, cancel := s.step()
	defer cancel()
	if err := s.vault.drop(ctx, ids...); err != nil && !s.vault.lost() {
		s.log("giving up descriptors: %v", err)
	}
}

// at is called between the steps of what must survive the end of the process. Tests end it
// there.
var at = func(string) {}

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
	s.holders.flush()
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.state.Clone()
	expired, retired, missed := next.Expire(now), next.Clone().Retire(now), s.giveUpMissed(next, now)
	if !expired && !retired && !missed {
		return
	}
	s.note(s.commit(next))
}

// note says what went wrong where nobody waits for it.
func (s *Server) note(err error) {
	if err != nil && s.ctx.Err() == nil {
		s.log("%v", err)
	}
}

func (s *Server) log(format string, a ...any) {
	if s.opts.Log != nil {
		s.opts.Log(fmt.Sprintf(format, a...))
	}
}

// Done is closed when the server has failed or was closed; Err says why.
func (s *Server) Done() <-chan struct{} {
	if s.isZero() {
		return closed
	}
	return s.ctx.Done()
}

var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// isZero says whether there is no server: it is a closed one.
func (s *Server) isZero() bool { return s == nil || s.ctx == nil }

// Err says why the server has ended, after Done: [share.ErrClosed] by Close.
func (s *Server) Err() error {
	if s.isZero() {
		return share.ErrClosed
	}
	return context.Cause(s.ctx)
}

// Close ends the server, and leaves in the fd store what it keeps, with the sockets: a
// server that is opened again goes on with them. Consumers that connect meanwhile wait, and
// those that are attaching are seen through. It may be called again and on nil.
func (s *Server) Close() error {
	if s.isZero() {
		return nil
	}
	s.stop(share.ErrClosed)
	var errs []error
	if s.control != nil {
		errs = append(errs, s.control.Close())
	}
	s.settle()
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
