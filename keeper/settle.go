package keeper

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/sock"
)

// attaching are readers between their lease and their mapping. The zero value is none.
type attaching struct {
	mu    sync.Mutex
	who   map[attacher]bool
	empty chan struct{} // closed when who is, if somebody waits for that
}

// An attacher is a lease of an offer.
type attacher struct {
	offer *offer
	lease int
}

func (a *attaching) hear(o *offer, e serve.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch e.Kind {
	case serve.Connected:
		if a.who == nil {
			a.who = map[attacher]bool{}
		}
		a.who[attacher{o, e.Lease}] = true
	case serve.Mapped, serve.Ended:
		delete(a.who, attacher{o, e.Lease})
		if len(a.who) == 0 && a.empty != nil {
			close(a.empty)
			a.empty = nil
		}
	}
}

// wait returns when all that attach have attached, or ctx is done.
func (a *attaching) wait(ctx context.Context) {
	a.mu.Lock()
	if len(a.who) == 0 {
		a.mu.Unlock()
		return
	}
	if a.empty == nil {
		a.empty = make(chan struct{})
	}
	empty := a.empty
	a.mu.Unlock()
	select {
	case <-empty:
	case <-ctx.Done():
	}
}

// patience is how long a server that ends waits for readers that are attaching (Server.patience),
// and for other things that take a moment.
const patience = time.Second

// settle lets nobody in any more, and finishes with the readers that are attaching. Peers
// that connect from now on wait for the next keeper in the socket, which the store has.
// The server's own listener is handed over for that, to this process and for no longer
// than it takes.
func (s *Server) settle() {
	if s.readers == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), min(s.patience, s.opts.Timeout))
	defer cancel()
	if err := s.leaveSocket(ctx); err == nil {
		s.attaching.wait(ctx)
	}
}

func (s *Server) leaveSocket(ctx context.Context) error {
	from, to, err := sock.NewPair()
	if err != nil {
		return err
	}
	took := make(chan error, 1)
	go func() { took <- takeAndLeave(ctx, to, s.opts.Socket) }()
	err = s.readers.HandOver(ctx, from)
	err = errors.Join(err, from.Close()) // which ends takeAndLeave, too
	return errors.Join(err, <-took, to.Close())
}

// takeAndLeave takes a socket over and leaves it in place, and accepts nobody.
func takeAndLeave(ctx context.Context, from *sock.Conn, path string) error {
	l, err := sock.TakeOver(ctx, from, path)
	if err != nil {
		return err
	}
	files, err := l.Files() // Close removes no socket whose files another process has
	return errors.Join(err, sock.CloseFiles(files), l.Close())
}
