package serve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gpufd/gpufd/internal/broker"
	"github.com/gpufd/gpufd/sock"
)

// A Watch waits for the end of one process. It owns the process's descriptor.
type Watch struct {
	Process *sock.Process
	ctx     context.Context
	Stop    context.CancelCauseFunc
	died    chan struct{} // closed when the process has died
	lost    chan struct{} // closed when it is watched no longer, and had not died

	number broker.ProcessID // to the broker
	id     string           // in watches
	users  int              // how many need it; under mu of watches
	leased atomic.Bool      // the process has, or had, a lease

	mu     sync.Mutex
	fences []*PeerFence // are told of the death
}

func NewWatch(ctx context.Context, p *sock.Process) *Watch {
	w := &Watch{Process: p, died: make(chan struct{}), lost: make(chan struct{})}
	w.ctx, w.Stop = context.WithCancelCause(ctx)
	return w
}

// Run returns when the process has died, or is watched no longer.
func (w *Watch) Run() {
	defer w.Process.Close()
	defer w.Stop(nil)
	if err := w.Process.Wait(w.ctx); err != nil {
		w.Stop(err)
		close(w.lost)
		return
	}
	close(w.died)
	w.mu.Lock()
	fences := w.fences
	w.fences = nil
	w.mu.Unlock()
	for _, f := range fences {
		f.Settle()
	}
}

// tell makes the watch tell f of the death.
func (w *Watch) tell(f *PeerFence) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fences = append(w.fences, f)
}

// doubt returns why it cannot be known when the process dies, or nil.
func (w *Watch) doubt() error {
	select {
	case <-w.lost:
		return context.Cause(w.ctx)
	default:
		return nil
	}
}

// watches are the processes that have connections to a server, or had leases of it. Each
// process is watched once, however often it comes. There are at most as many watches as the
// server takes connections. All end with the server.
type watches struct {
	server *Server
	most   int

	mu     sync.Mutex
	byID   map[string]*Watch
	order  []*Watch         // oldest first
	number broker.ProcessID // of the last
}

// ErrTooManyProcesses says why a process is not watched, or not any longer.
var ErrTooManyProcesses = errors.New("the server watches as many processes as it takes connections")

func newWatches(s *Server, most int) *watches {
	return &watches{server: s, most: most, byID: map[string]*Watch{}}
}

// join watches the process at the other end of conn, at least until leave.
func (ws *watches) join(conn *sock.Conn) (*Watch, error) {
	p, err := ws.server.opts.Process(conn)
	if err != nil {
		return nil, err
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w := ws.byID[p.ID()]; w != nil {
		if !IsClosed(w.died) && !w.Process.Died() && w.doubt() == nil {
			w.users++
			return w, p.Close()
		}
		ws.drop(w) // its pid is another's by now
	}
	if !ws.makeRoom() {
		return nil, errors.Join(ErrTooManyProcesses, p.Close())
	}
	w := NewWatch(ws.server.ctx, p)
	ws.number++
	w.users, w.id, w.number = 1, p.ID(), ws.number
	if w.id == "" {
		w.id = fmt.Sprintf("number %d", w.number)
	}
	ws.byID[w.id] = w
	ws.order = append(ws.order, w)
	ws.server.work.Go(func() {
		w.Run()
		ws.mu.Lock()
		ws.drop(w)
		ws.mu.Unlock()
		var e broker.Event = broker.Die{Process: w.number}
		if err := w.doubt(); err != nil {
			e = broker.Lose{Process: w.number, Doubt: err.Error()}
		}
		ws.server.bring(e, nil)
		ws.server.mu.Lock()
		defer ws.server.mu.Unlock()
		ws.server.stopWatching()
	})
	return w, nil
}

func (ws *watches) count() int {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return len(ws.order)
}

// makeRoom ends the oldest watch without users if there are too many watches, and reports
// whether there is room. It runs with mu held.
func (ws *watches) makeRoom() bool {
	if len(ws.order) < ws.most {
		return true
	}
	i := slices.IndexFunc(ws.order, func(w *Watch) bool { return w.users == 0 })
	if i < 0 {
		return false
	}
	ws.end(ws.order[i])
	return true
}

// end runs with mu held.
func (ws *watches) end(w *Watch) {
	w.Stop(ErrTooManyProcesses)
	ws.drop(w)
}

// drop runs with mu held.
func (ws *watches) drop(w *Watch) {
	if ws.byID[w.id] == w {
		delete(ws.byID, w.id)
	}
	ws.order = slices.DeleteFunc(ws.order, func(x *Watch) bool { return x == w })
}

// hold keeps a watch, which may be nil, until leave.
func (ws *watches) hold(w *Watch) {
	if w != nil {
		ws.mu.Lock()
		defer ws.mu.Unlock()
		w.users++
	}
}

// leave ends a join or a hold. The watch of a process that had a lease stays while there is
// room, because the application may still ask for its fence.
func (ws *watches) leave(w *Watch) {
	if w == nil {
		return
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w.users--; w.users == 0 && !w.leased.Load() {
		ws.end(w)
	}
}

// keepWatching keeps the watch of a session whose lease has ended while an offer waits for the end
// of its process. It runs with mu held.
func (s *Server) keepWatching(x *session) {
	if w := x.watch; w != nil && s.broker.Awaits(w.number) && s.watched[w.number] == nil {
		s.watched[w.number] = w
		s.watches.hold(w)
	}
}

// stopWatching ends keepWatching where no offer waits any more. It runs with mu held.
func (s *Server) stopWatching() {
	for number, w := range s.watched {
		if !s.broker.Awaits(number) {
			delete(s.watched, number)
			s.watches.leave(w)
		}
	}
}
