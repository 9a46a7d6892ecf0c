package server

import (
	"context"
	"errors"
	"time"
)

// patience is how long a server that ends waits for readers that are attaching (Server.patience),
// and for other short waits.
const patience = time.Second

// settle waits for readers that are attaching. Peers that connect from now on wait in the socket,
// which the store has, for the next keeper.
func (s *Server) settle() {
	ctx, cancel := context.WithTimeout(context.Background(), min(s.patience, s.opts.Timeout))
	defer cancel()
	_ = s.readers.Settle(ctx)
}

// endReaders ends the leases. Readers learn whether another keeper follows.
func (s *Server) endReaders() error {
	if errors.Is(context.Cause(s.ctx), ErrEnded) {
		return s.readers.Close()
	}
	return s.readers.CloseForSuccessor()
}
