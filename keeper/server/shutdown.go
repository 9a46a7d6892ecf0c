package server

import (
	"context"
	"errors"
	"time"

	"github.com/gpufd/gpufd/sock"
)

// patience is how long a server that ends waits for readers that are attaching (Server.patience),
// and for other short waits.
const patience = time.Second

// settle admits no more readers, and waits for those that are attaching. Peers that connect from
// now on wait in the socket, which the store has, for the next keeper. For that, the server hands
// its own listener over to this process, which closes it at once.
func (s *Server) settle() {
	if s.readers == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), min(s.patience, s.opts.Timeout))
	defer cancel()
	if err := s.leaveSocket(ctx); err == nil {
		s.readers.AwaitAttached(ctx)
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
	err = errors.Join(err, from.Close()) // this ends takeAndLeave, too
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
