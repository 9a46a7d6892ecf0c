package share

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// A leaseConn is one lease of an attachment: a connection, and what is known of the producer at
// its other end. An attachment of [Follow] may have several, one after the other.
type leaseConn struct {
	transport *serve.Transport
	offer     OfferInfo
	fence     *serve.PeerFence
	says      wire.Process      // what the producer says of its process
	takes     wire.Capabilities // what it takes
	keeps     bool              // this side keeps the connection, after the end, until it has closed the memory

	ctx    context.Context // of the reading
	stop   context.CancelFunc
	done   chan struct{}
	reason error                 // why done is closed
	cause  atomic.Pointer[error] // why this side closed the connection, if it did

	verdict atomic.Pointer[chan error] // whether the verdict was sent, once it is being sent
}

// take makes the new lease of from the attachment's, and watches the producer's process
// until Close.
func (a *Attachment) take(from *attaching) *leaseConn {
	t := &leaseConn{transport: from.transport, offer: from.described(), says: from.offer.Process, takes: from.takes, done: make(chan struct{})}
	t.keeps = t.offer.Legacy != nil || a.awaitsRelease(t)
	t.ctx, t.stop = context.WithCancel(a.open)
	var w *serve.Watch
	if from.process != nil {
		w = serve.NewWatch(context.Background(), from.process)
		a.behind.Go(w.Run)
	}
	t.fence = serve.NewPeerFence(from.transport.Conn.Peer(), t.says, w, from.unwatched, t.done)
	a.now.Store(t)
	return t
}

// awaitsRelease reports whether the producer waits on the connection until this side has
// closed the memory.
func (a *Attachment) awaitsRelease(t *leaseConn) bool { return t.offer.AwaitsRelease && a.writes }

// follow reads until the lease is over, and then ends the conversation. If legacy memory is
// open, Close ends it instead: the producer may free the memory once the connection ends.
func (a *Attachment) follow(t *leaseConn) {
	defer close(t.done)
	var last wire.Message
	t.reason = t.read()
	if serve.IsBadRecord(t.reason) || errors.Is(t.reason, serve.ErrRate) {
		last = serve.Refusal(t.reason)
	}
	cause := t.cause.Load()
	switch {
	case cause != nil:
		t.reason = *cause
	case t.ctx.Err() != nil:
		t.reason = errClosed
	}
	t.reason = t.fence.Lost(t.transport, t.says, t.reason)
	t.fence.Released = t.transport.Left || serve.IsEnded(t.reason)
	t.hangUp(last)
}

// isReported reports whether the producer ended the lease because it had read the verdict: it closes then.
func (t *leaseConn) isReported() bool {
	sent := t.verdict.Load()
	return sent != nil && errors.Is(t.reason, io.EOF) && <-*sent == nil
}

// read reads until the producer goes or says that the offer has ended.
func (t *leaseConn) read() error {
	for {
		m, files, err := t.transport.Receive(t.ctx, true)
		_ = sock.CloseFiles(files)
		switch m := m.(type) {
		case nil:
			return err
		case wire.Progress:
		case wire.Revoke:
			return serve.RevokedError(m)
		default:
			return serve.Unexpected(m, "from a producer whose offer was taken")
		}
	}
}

// hangUp says last, unless that is nil or would have to wait, and closes the connection,
// for which the producer waits. If it waits for the memory, too, Close closes the connection.
func (t *leaseConn) hangUp(last wire.Message) {
	t.stop()
	if t.keeps {
		t.transport.TrySay(last)
		return
	}
	_ = t.transport.Close(last, 0)
}

func (t *leaseConn) report(ctx context.Context, m wire.Verdict) error {
	sent := make(chan error, 1)
	t.verdict.Store(&sent)
	err := t.transport.Send(ctx, m)
	sent <- err
	if err != nil {
		return t.ended(err)
	}
	timer := time.NewTimer(t.transport.Timeout)
	defer timer.Stop()
	select {
	case <-t.done:
		if errors.Is(t.reason, io.EOF) {
			return nil // it closes when it has read the verdict
		}
		return t.reason
	case <-timer.C:
		return ErrTimeout
	case <-ctx.Done():
		return plain.ContextErr(ctx)
	}
}

// ended returns why the lease ended, which the reader knows, in place of an error of
// sending. A producer that receives nothing more is lost, even if it can still send.
func (t *leaseConn) ended(err error) error {
	if err == nil || isContext(err) || !errors.Is(err, sock.ErrPeerLost) && !errors.Is(err, sock.ErrClosed) {
		return err
	}
	timer := time.NewTimer(t.transport.Goodbye)
	defer timer.Stop()
	select {
	case <-t.done:
	case <-timer.C:
		t.cause.CompareAndSwap(nil, &err)
		t.hangUp(nil) // ends the reader
		<-t.done
	}
	return t.reason
}

// isContext reports whether a context has ended, whatever for: that may be the end of another connection.
func isContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
