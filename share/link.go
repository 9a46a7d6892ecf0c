package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gpufd/gpufd/sock"
)

// DefaultTimeout bounds each step of a conversation unless an option says
// otherwise.
const DefaultTimeout = 30 * time.Second

// goodbye bounds how long the side that sends last waits for the other to
// read it.
const goodbye = time.Second

// A link is a connection that speaks messages, each within a time.
type link struct {
	conn    *sock.Conn
	timeout time.Duration
	goodbye time.Duration // goodbye, but in tests
	meter   *meter        // of what is received
}

// mostRecord is the longest record that either side takes. The longest that there
// is, an offer with all the name and data that it may have, is 4,507 bytes.
const mostRecord = 8 << 10

// send sends m with files, which stay the caller's.
func (l link) send(ctx context.Context, m message, files ...*os.File) error {
	return l.sendRecord(ctx, encode(m), files...)
}

// sendRecord is send for a message that is encoded already.
func (l link) sendRecord(ctx context.Context, record []byte, files ...*os.File) error {
	if ctx.Err() == nil { // mostly there is nothing to wait for, and a timer costs more than to send
		if err := l.conn.TrySend(record, files...); !errors.Is(err, sock.ErrWouldWait) {
			return err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, l.timeout, ErrTimeout)
	defer cancel()
	return l.conn.Send(ctx, record, files...)
}

// receive waits for the next message within the link's time, or without end
// if patient. The record is the caller's to close.
func (l link) receive(ctx context.Context, patient bool) (message, sock.Record, error) {
	if !patient {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, l.timeout, ErrTimeout)
		defer cancel()
	}
	rec, err := l.conn.Receive(ctx)
	if err != nil {
		return nil, rec, err
	}
	m, err := l.open(rec)
	if err != nil {
		return nil, sock.Record{}, errors.Join(err, rec.Close())
	}
	return m, rec, nil
}

// open makes a message of a record.
func (l link) open(rec sock.Record) (message, error) {
	if !l.meter.allow(time.Now()) {
		return nil, fmt.Errorf("%w: more than %d", ErrRate, l.meter.rate)
	}
	m, err := decode(rec.Data)
	if err == nil {
		err = checkFiles(m, rec)
	}
	return m, err
}

// A meter bounds the records a second, which may come in bursts of one second's
// worth. One goroutine uses it at a time. nil bounds nothing.
type meter struct {
	rate int
	paid time.Time // each record pays for its part of a second, from here on
}

// newMeter returns nil for a rate that is no bound.
func newMeter(rate int) *meter {
	if rate <= 0 {
		return nil
	}
	return &meter{rate: rate}
}

// allow counts a record that comes now, and says whether that is not too many.
func (m *meter) allow(now time.Time) bool {
	if m == nil {
		return true
	}
	if m.paid.Before(now) {
		m.paid = now
	}
	m.paid = m.paid.Add(time.Second / time.Duration(m.rate))
	return m.paid.Sub(now) <= time.Second
}

// wait returns when the next record is allowed, or ctx is done.
func (m *meter) wait(ctx context.Context) error {
	if m == nil {
		return ctx.Err()
	}
	timer := time.NewTimer(time.Until(m.paid.Add(time.Second/time.Duration(m.rate) - time.Second)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// A patience is the time for one step after the other. To end a context takes a
// moment, which should not be one between a record and its answer.
type patience struct {
	ctx    context.Context
	cancel context.CancelFunc
	renew  func() // for the next step
}

// newPatience begins with the first step; whoever began it calls cancel. Each step has
// the timeout that there is when it begins: tests change it between steps.
func newPatience(ctx context.Context, timeout *time.Duration) *patience {
	p := &patience{cancel: func() {}}
	p.renew = func() {
		p.cancel()
		p.ctx, p.cancel = context.WithTimeoutCause(ctx, *timeout, ErrTimeout)
	}
	p.renew()
	return p
}

// checkFiles holds the descriptors that came against those announced.
func checkFiles(m message, rec sock.Record) error {
	want := 0
	if o, ok := m.(offer); ok {
		want = o.fds
	}
	if len(rec.Files) != want {
		return fmt.Errorf("%w: type %d came with %d descriptors instead of %d", ErrWire, m.kind(), len(rec.Files), want)
	}
	return nil
}

// part sends the last record of this side and gives the peer a moment to read
// it: closing at once could take it away. The error is why it could not be sent.
func (l link) part(m message) error {
	ctx, cancel := l.shortly(context.Background())
	defer cancel()
	if err := l.conn.Send(ctx, encode(m)); err != nil {
		return err
	}
	_ = l.conn.WaitClose(ctx) // the peer is told or lost; either way this is the end
	return nil
}

// sendShortly sends m to a peer that may not read any more.
func (l link) sendShortly(ctx context.Context, m message) error {
	ctx, cancel := l.shortly(ctx)
	defer cancel()
	return l.conn.Send(ctx, encode(m))
}

// shortly is ctx for what nobody is waited for that does not go on at once.
func (l link) shortly(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, min(l.goodbye, l.timeout), ErrTimeout)
}

// dismiss ends a conversation at once. The peer is told why if that can be without
// waiting, which holds for one that was sent nothing yet.
func (l link) dismiss(answer refuse) {
	_ = l.conn.TrySend(encode(answer))
	_ = l.conn.Close()
}

// refusal is the answer to a record that could not be used.
func refusal(err error) refuse {
	switch {
	case errors.Is(err, ErrVersion):
		return refuse{RefusedVersion, err.Error()}
	case errors.Is(err, sock.ErrTooManyInFlight): // for as long as a step may take; that is not the peer's doing
		return refuse{RefusedBusy, "the producer has too many descriptors in flight; come again"}
	case errors.Is(err, ErrTimeout):
		return refuse{RefusedTimeout, "you took too long over a step"}
	case errors.Is(err, ErrRate):
		return refuse{RefusedRate, err.Error()}
	}
	return refuse{RefusedRecord, err.Error()}
}

// unexpected is the error for a message that does not belong here.
func unexpected(m message, state string) error {
	if r, ok := m.(refuse); ok {
		return &RefusalError{r.code, r.text}
	}
	return fmt.Errorf("%w: type %d %s", ErrProtocol, m.kind(), state)
}
