package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/sock"
)

// A Server is a keeper. It holds descriptors of GPU memory and decides which readers get them. It
// loads no libcuda and maps no memory. The fd store, a process of its own, holds all that must
// outlive the server: it may die at any moment, and the next one goes on where it was. A Server
// is safe for concurrent use.
type Server struct {
	opts    Options
	vault   *vault
	readers *serve.Server
	control *sock.Listener
	metrics *metrics
	since   time.Time

	ctx  context.Context
	stop context.CancelCauseFunc
	work sync.WaitGroup

	// Used only by the change that holds changeLock.
	changeLock *changeLock
	ready      map[state.ID]offerFiles // for offers that a commit is about to make
	unresumed  []state.HoldID          // leases held when this server began
	dead       map[state.ID]bool       // processes that have died, not yet in a manifest
	saved      time.Time               // the last manifest
	store      context.Context         // for conversations with the store: they have no deadline
	cut        context.CancelFunc      // cancels store when the server ends and the store does not answer

	// Also read outside changes. A change writes these with mu held; watchers may change
	// whenever mu is held. Nobody waits for the store with mu held.
	mu        sync.Mutex
	state     *state.State
	offers    map[string]*offer  // by the name that readers ask for
	resumable map[partKey]*offer // of retired parts, for readers that had them
	past      []*offer           // that others have replaced, until their last lease has ended
	unparking map[versionKey]*unparking
	poolErr   error           // why the pool is smaller than it was to be, or nil
	leaving   map[*offer]bool // offers that end when the change is made
	left      chan struct{}   // closed when the change is made or has failed
	unoffered bool            // a part that should be offered is not
	watchers  map[chan api.Event]string
	fences    map[state.ID]time.Time // processes whose end is awaited, and since when

	holders    *holders
	complained string        // the last complaint; for tend alone
	begun      bool          // the server serves, or has served
	patience   time.Duration // how long Close waits for readers that are attaching

	processes *processes
	clients   *places // connections of the control socket
	movings   *places // requests to park or unpark, of others than the owner
	received  *places // descriptors of parts that are not delivered
	budget    budget
	moves     chan struct{} // holds a token while parts are parked or unparked: one version at a time
	stuck     error         // why no mover may be started any more, or nil; for whoever has the token
	requests  *pool         // bytes of requests that have begun
	answers   *pool         // bytes of answers that are being sent
	tables    *pool         // bytes of tables that are not delivered; what is kept counts as well
	texts     sync.Mutex    // held while a long request is decoded: one at a time
	reading   sync.Mutex    // held while a table is read
}

// Open starts a keeper. It finds the fd store or starts one, reads what the store holds, and
// listens. The caller owns the Server and ends it with Close; what it keeps stays in the fd
// store. ctx bounds the start.
//
// Errors: [ErrBusy] if another keeper has the fd store; [sock.ErrListening] if a living process has the
// socket, [sock.ErrNoDirectory] and the others of [sock.Listen]; and one for a manifest that cannot
// be read, which Open leaves as it is.
func Open(ctx context.Context, opts Options) (*Server, error) {
	if err := plain.ContextErr(ctx); err != nil {
		return nil, err
	}
	if err := opts.check(); err != nil {
		return nil, err
	}
	return open(ctx, opts, nil)
}

// open is Open with checked options and with the listener for metrics, or nil. After an error
// the caller closes the listener.
func open(ctx context.Context, opts Options, scrapers net.Listener) (*Server, error) {
	if err := makeDirectory(opts.Socket); err != nil {
		return nil, err
	}
	vault, err := openVault(ctx, opts.Socket+storeSuffix, opts.Store)
	if err != nil {
		return nil, err
	}
	s := &Server{opts: opts, vault: vault, since: time.Now(), patience: patience, offers: map[string]*offer{}, resumable: map[partKey]*offer{}, unparking: map[versionKey]*unparking{}, moves: make(chan struct{}, 1), ready: map[state.ID]offerFiles{}, watchers: map[chan api.Event]string{}, fences: map[state.ID]time.Time{}, dead: map[state.ID]bool{}}
	s.ctx, s.stop = context.WithCancelCause(context.Background())
	s.store, s.cut = context.WithCancel(context.Background())
	s.changeLock = newChangeLock(opts.Timeout, s.logLateChange)
	s.holders, s.processes = newHolders(s), newProcesses(s)
	owner, files := opts.Policy.Owner, receivable()
	s.budget = newBudget()
	most := s.budget.connections
	s.clients = newPlaces("connections", most, min(most/4, maxClientsOfUID), most/8, owner)
	s.movings = newPlaces("requests to park or unpark", most, mostMovings, 0, owner)
	s.requests, s.answers = newPool("requests", s.budget.requests, owner), newPool("answers", s.budget.answers, owner)
	s.tables = newPool("tables that were not delivered", s.budget.tables, owner)
	s.received = newPlaces("descriptors of parts that were not delivered", files, files/2, files/4, owner)
	if err := s.start(ctx, scrapers); err != nil {
		return nil, errors.Join(err, s.fail(ctx))
	}
	return s, nil
}

// fail ends a server that has not begun, and the store if it was started for this server alone.
// Then it also removes the sockets that it made: no keeper would find them in a store.
func (s *Server) fail(ctx context.Context) error {
	var err error
	if s.vault.spawned {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.Timeout)
		defer cancel()
		if err = s.vault.store.Exit(ctx); err == nil {
			s.readers.Reclaim()
			s.control.Reclaim()
			err = errors.Join(s.readers.Close(), s.control.Close())
		}
	}
	return errors.Join(err, s.Close())
}

// start restores what the store has, and serves.
func (s *Server) start(ctx context.Context, scrapers net.Listener) (err error) {
	if scrapers == nil { // only with the store: a predecessor has the address as long as it has the store
		if scrapers, err = listenMetrics(s.opts.Metrics, false); err != nil {
			return err
		}
	}
	if err := s.takeUp(ctx); err != nil {
		if scrapers != nil {
			_ = scrapers.Close() // also the caller's
		}
		return err
	}
	s.begun = true
	if scrapers != nil {
		s.serveMetrics(scrapers)
	}
	s.moves <- struct{}{} // until the predecessor's mover has ended: makePool gives it back
	s.readers.Start()
	s.work.Go(s.acceptControl)
	s.work.Go(s.holders.run)
	s.work.Go(s.tend)
	s.work.Go(s.makePool)
	return nil
}

// takeUp restores state, sockets and offers from the store.
func (s *Server) takeUp(ctx context.Context) error {
	manifest, err := s.vault.store.Manifest(ctx)
	if err != nil {
		return fmt.Errorf("reading what the fd store keeps: %w", err)
	}
	s.state = state.New(state.Policy(s.opts.Policy))
	if manifest != nil {
		if s.state, err = state.Decode(manifest, state.Policy(s.opts.Policy)); err != nil {
			return fmt.Errorf("reading what the fd store keeps: %w", err)
		}
	}
	s.state.Bound(s.budget.bounds(max(len(s.state.Pool()), chunksFor(s.opts.Pool))))
	if err := s.dropStrays(ctx); err != nil {
		return err
	}
	s.metrics = newMetrics(s)
	if err := s.listen(ctx); err != nil {
		return err
	}
	err = s.within(ctx, s.recover)
	if ctx.Err() != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	return err
}

// dropStrays drops what an earlier keeper put into the store and died before naming.
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

// commit makes next the state, or returns an error and leaves the state as it is. On success it
// counts each key in counted. A later error is logged and loses nothing: the next keeper finds
// next. It is part of a change.
func (s *Server) commit(next *state.State, counted ...string) error {
	if err := s.ctx.Err(); err != nil {
		return errEnding
	}
	defer s.discard()
	if err := s.prepare(next); err != nil {
		return err
	}
	s.takeLeave(next)
	done := s.metrics.into(next, counted)
	leases := s.holders.into(next)
	for id := range s.dead {
		next.Fence(id)
	}
	next.Retire(time.Now())
	dropped := next.Dropped()
	err := s.vault.swap(s.store, next.Encode())
	s.publish(next, leases, err)
	done(err)
	if s.store.Err() != nil {
		return errEnding // it is unknown what the store has: the next keeper reads it there
	}
	if err != nil {
		return err
	}
	s.saved = time.Now()
	s.processes.forget(dropped)
	s.drop(ids(dropped)...)
	return nil
}

// publish makes next, which the store has taken, the state. After an error of the store it
// publishes nothing.
func (s *Server) publish(next *state.State, leases map[*holder]state.HoldID, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.stay()
	s.holders.noteRecorded(leases, err)
	if err != nil {
		return
	}
	s.state = next
	s.fenced()
	s.followFences()
	s.reconcile()
}

// errEnding says that this keeper makes no more changes: clients see their connection end, and
// go on with the next keeper.
var errEnding = fmt.Errorf("keeper: ending: %w", serve.ErrClosed)

// step bounds a step of a conversation. The end of the server does not cancel it: every request
// is answered.
func (s *Server) step() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(s.ctx), s.opts.Timeout)
}

// drop drops from the store what no manifest names. It is part of a change.
func (s *Server) drop(ids ...uint64) {
	if err := s.vault.drop(s.store, ids...); err != nil && !s.vault.lost() {
		s.log("giving up descriptors: %v", err)
	}
}

// testHookStep is called at steps that no other process can see. Tests end the process there, or wait.
var testHookStep = func(string) {}

func ids(from []state.ID) []uint64 {
	to := make([]uint64, len(from))
	for i, id := range from {
		to[i] = uint64(id)
	}
	return to
}

// tend lets tickets, retired versions and names expire in time.
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

// savePause is the least time between a manifest and the next one that only saves counts.
const savePause = time.Second / 2

func (s *Server) expire() {
	_ = s.holders.flush() // which logs its errors
	if s.begin(s.ctx) != nil {
		return
	}
	defer s.finish()
	now := time.Now()
	next := s.state.Clone()
	expired, retired, revoked := next.Expire(now), next.Clone().Retire(now), s.revokeUnresumed(next, now)
	counted := s.metrics.changed() && now.Sub(s.saved) > savePause
	if s.unoffered {
		s.mu.Lock()
		s.reconcile()
		s.mu.Unlock()
	}
	if !expired && !retired && !revoked && !counted && len(s.dead) == 0 {
		return
	}
	before := s.state
	err := s.commit(next)
	if err == nil {
		s.announceRemoved(before)
	}
	if err == nil && revoked {
		s.unresumed = nil
	}
	s.note(err)
}

// announceRemoved tells watchers which names have no version any more.
func (s *Server) announceRemoved(before *state.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := map[string]bool{}
	s.state.Current(func(name string, _ *state.Version) { kept[name] = true })
	before.Current(func(name string, v *state.Version) {
		if !kept[name] {
			s.announce(api.Event{Name: name, Kind: "removed", Version: v.N, Text: "it has expired"})
		}
	})
}

// note logs an error that nobody waits for. It leaves a lost store to tend.
func (s *Server) note(err error) {
	if err != nil && s.ctx.Err() == nil && state.CodeOf(err) != api.StoreLost {
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

// isZero reports whether s is nil or zero: such a server is closed.
func (s *Server) isZero() bool { return s == nil || s.ctx == nil }

// Err returns why the server has ended, after Done: [ErrClosed] after Close, [ErrYielded] or [ErrEnded]
// if a client asked for it, and otherwise what failed.
func (s *Server) Err() error {
	if s.isZero() {
		return serve.ErrClosed
	}
	return context.Cause(s.ctx)
}

// Close ends the server. What it keeps and its sockets stay in the fd store, and the next server
// goes on with both. Readers that connect meanwhile wait for it. Close lets readers that
// are attaching finish, for a second at most. If the fd store does not answer, Close waits for
// it as long as Options.Timeout. Where the fd store has ended in order, Close removes the sockets. It may
// be called again and on nil.
func (s *Server) Close() error {
	if s.isZero() {
		return nil
	}
	s.stop(serve.ErrClosed)
	defer s.cut()
	defer time.AfterFunc(s.opts.Timeout, s.cut).Stop() // a store that does not answer
	var errs []error
	if s.control != nil {
		errs = append(errs, s.control.Close())
	}
	if s.readers != nil {
		s.settle()
	}
	s.mu.Lock()
	s.offers, s.resumable, s.past = nil, nil, nil // from now on reconcile does nothing
	s.mu.Unlock()
	testHookStep("offers taken")
	if s.readers != nil {
		errs = append(errs, s.endReaders())
	}
	s.work.Wait()
	s.save()
	errs = append(errs, s.vault.Close())
	if s.begun && !exists(s.opts.Socket+storeSuffix) { // the fd store has ended in order, and could not remove what this keeper had
		_ = removeSockets(s.opts.Socket)
	}
	return errors.Join(errs...)
}

// save writes what was counted since the last manifest for the next keeper, if it is known what
// the store has.
func (s *Server) save() {
	s.changeLock.taken <- struct{}{} // held by another Close, at most
	defer func() { <-s.changeLock.taken }()
	why := context.Cause(s.ctx)
	ordered := errors.Is(why, serve.ErrClosed) || errors.Is(why, ErrYielded)
	if !ordered || !s.begun || !s.metrics.changed() || s.store.Err() != nil {
		return
	}
	next := s.state.Clone()
	done := s.metrics.into(next, nil)
	err := s.vault.swap(s.store, next.Encode())
	if done(err); err != nil && !s.vault.lost() {
		s.log("the last of what was counted is lost: %v", err)
	}
}
