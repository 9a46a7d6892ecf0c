package share

import (
	"context"
	"errors"
	"time"

	"github.com/gpufd/gpufd/sock"
)

// An earlyReader waits for one message of a peer that has nothing to say yet.
type earlyReader struct {
	heard chan heard // one, then closed
	stop  context.CancelFunc
}

type heard struct {
	m   message
	rec sock.Record
	err error
}

// read starts an earlyReader, which take or close ends.
func (l link) read(ctx context.Context) *earlyReader {
	ctx, stop := context.WithCancel(ctx)
	r := &earlyReader{make(chan heard, 1), stop}
	go func() {
		defer close(r.heard)
		m, rec, err := l.receive(ctx, true)
		r.heard <- heard{m, rec, err}
	}()
	return r
}

// take returns the message once it is there, and ends the reader.
func (r *earlyReader) take(ctx context.Context, timeout time.Duration) (message, sock.Record, error) {
	defer r.close()
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, ErrTimeout)
	defer cancel()
	select {
	case h := <-r.heard:
		return h.m, h.rec, h.err
	case <-ctx.Done():
		return nil, sock.Record{}, context.Cause(ctx)
	}
}

// close ends the reader and drops what it has heard. It may be called again and
// on nil.
func (r *earlyReader) close() {
	if r == nil {
		return
	}
	r.stop()
	for h := range r.heard {
		_ = h.rec.Close() // only an offer has files, and that comes from nobody here
	}
}

// outOfTurn is what is wrong with a message where none belongs.
func (h heard) outOfTurn() error {
	if h.err != nil {
		return h.err
	}
	return errors.Join(unexpected(h.m, "from a consumer that waits for an offer"), h.rec.Close())
}
