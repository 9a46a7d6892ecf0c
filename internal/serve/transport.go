package serve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// DefaultTimeout bounds each step of a conversation unless an option says
// otherwise.
const DefaultTimeout = 30 * time.Second

// Goodbye bounds how long the side that sends last waits for the other to
// read it.
const Goodbye = time.Second

// A Transport is a connection that carries messages, each within a time.
type Transport struct {
	Conn    *sock.Conn
	Timeout time.Duration // of each step
	Goodbye time.Duration // the constant Goodbye, but in tests
	meter   *meter        // of what is received

	Left       bool          // the peer has said farewell; the goroutine that receives sets it
	declined   bool          // the peer said at the end that it cannot attach, without MAPPED before; close sets it
	Notices    chan []byte   // received notices
	Superseded chan struct{} // closed when the producer says so; nil on the producer's side
}

func NewTransport(conn *sock.Conn, o PeerOptions) *Transport {
	return &Transport{Conn: conn, Timeout: o.Timeout, Goodbye: o.Goodbye, meter: newMeter(o.Rate), Notices: make(chan []byte, maxNotices)}
}

// Send sends m with files, which the caller keeps.
func (t *Transport) Send(ctx context.Context, m wire.Message, files ...*os.File) error {
	return t.SendRecord(ctx, wire.Encode(m), files...)
}

// SendRecord sends a message that is encoded already.
func (t *Transport) SendRecord(ctx context.Context, record []byte, files ...*os.File) error {
	if ctx.Err() == nil { // mostly there is nothing to wait for, and a timer costs more than to send
		if err := t.Conn.TrySend(record, files...); !errors.Is(err, sock.ErrWouldWait) {
			return err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, t.Timeout, ErrTimeout)
	defer cancel()
	return t.Conn.Send(ctx, record, files...)
}

// Receive waits for the next message, no longer than for a step unless patient. It skips
// records that may be ignored, and notes notices, farewells and SUPERSEDED. The caller owns
// the files that come with an offer or with application data.
func (t *Transport) Receive(ctx context.Context, patient bool) (wire.Message, []*os.File, error) {
	if !patient {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, t.Timeout, ErrTimeout)
		defer cancel()
	}
	for {
		m, files, err := t.next(ctx)
		switch m := m.(type) {
		case wire.Unknown:
			continue
		case wire.Farewell:
			t.Left = true
			continue
		case wire.Notice:
			t.NoteNotice(m.Data)
			continue
		case wire.Superseded:
			if t.NoteSuperseded() {
				continue
			}
		}
		if m != nil && t.Left {
			t.Left = false
			return nil, nil, errors.Join(fmt.Errorf("%w: %s behind a farewell", ErrUnexpected, m.Type()), sock.CloseFiles(files))
		}
		return m, files, err
	}
}

// NoteSuperseded notes that the producer offers other memory, once. It returns false on the
// producer's side, where the record does not belong.
func (t *Transport) NoteSuperseded() bool {
	if t.Superseded == nil {
		return false
	}
	select {
	case <-t.Superseded:
	default:
		close(t.Superseded)
	}
	return true
}

// next waits for the next record, which may be one to be ignored.
func (t *Transport) next(ctx context.Context) (wire.Message, []*os.File, error) {
	rec, err := t.Conn.Receive(ctx)
	if err != nil {
		return nil, nil, err
	}
	m, err := t.open(rec)
	if err != nil {
		return nil, nil, errors.Join(err, rec.Close())
	}
	return m, rec.Files, nil
}

// open makes a message of a record.
func (t *Transport) open(rec sock.Record) (wire.Message, error) {
	if !t.meter.allow(time.Now()) {
		return nil, fmt.Errorf("%w: more than %d", ErrRate, t.meter.rate)
	}
	m, err := wire.Decode(rec.Data)
	if err != nil {
		return nil, err
	}
	if want := wire.Descriptors(m); len(rec.Files) != want {
		return nil, fmt.Errorf("%w: %s came with %d descriptors instead of %d", wire.ErrMalformed, m.Type(), len(rec.Files), want)
	}
	return m, nil
}

// Close ends the conversation and drops the connection. It says last, unless that is
// nil, and waits for at most grace until the peer has closed its end or given a verdict,
// before which it closes the memory. Other records of the peer may have crossed our last
// word and are ignored, within the usual rate. Without a grace, last is said only if that
// need not wait.
//
// The error says why the peer may not have let go, or is [sock.ErrPeerLost] if it had gone
// before.
func (t *Transport) Close(last wire.Message, grace time.Duration) error {
	if grace <= 0 {
		t.TrySay(last)
		t.Conn.Drop()
		return ErrTimeout
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), grace, ErrTimeout)
	defer cancel()
	return t.closeBy(ctx, last)
}

// closeBy is Close with a context instead of a grace.
func (t *Transport) closeBy(ctx context.Context, last wire.Message) error {
	defer t.Conn.Drop()
	lost, mapped := t.SayLast(ctx, last), false
	for t.meter.wait(ctx) == nil {
		m, files, err := t.next(ctx)
		_ = sock.CloseFiles(files)
		mapped = mapped || m != nil && m.Type() == wire.TypeMapped
		_, said := m.(wire.Verdict)
		switch m := m.(type) {
		case wire.Farewell:
			t.Left = true
		case wire.Verdict:
			t.declined = !m.OK && !mapped
		case wire.Refuse:
			t.declined = !mapped
		}
		switch {
		case said, errors.Is(err, sock.ErrPeerLost):
			return lost
		case errors.Is(err, sock.ErrStuck):
			return t.Conn.WaitHangup(ctx)
		case IsBadRecord(err):
			t.meter.allow(time.Now()) // it counts, too
		case err != nil:
			return err
		}
	}
	return ErrTimeout
}

// SayLast says m, unless that is nil, to a peer that may not read any more. It returns an
// error only if the peer has gone.
func (t *Transport) SayLast(ctx context.Context, m wire.Message) error {
	if m == nil {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, t.Farewell(), ErrTimeout)
	defer cancel()
	if err := t.Conn.Send(ctx, wire.Encode(m)); errors.Is(err, sock.ErrPeerLost) {
		return err
	}
	return nil
}

// TrySay says m, unless that is nil or would have to wait.
func (t *Transport) TrySay(m wire.Message) {
	if m != nil {
		_ = t.Conn.TrySend(wire.Encode(m))
	}
}

// Farewell returns how long a peer may take to read the last record.
func (t *Transport) Farewell() time.Duration { return min(t.Goodbye, t.Timeout) }

// A Stepper bounds one step after the other. Ending a context takes a moment, which should
// not delay the answer to a record.
type Stepper struct {
	Ctx    context.Context // of this step
	Cancel context.CancelFunc
	Renew  func() // begins the next step
}

// NewStepper begins the first step; its caller calls cancel. Each step has the
// timeout that there is when it begins: tests change it between steps.
func NewStepper(ctx context.Context, timeout *time.Duration) *Stepper {
	s := &Stepper{Cancel: func() {}}
	s.Renew = func() {
		s.Cancel()
		s.Ctx, s.Cancel = context.WithTimeoutCause(ctx, *timeout, ErrTimeout)
	}
	s.Renew()
	return s
}

// Refusal returns the answer to a record that could not be used.
func Refusal(err error) wire.Refuse {
	code, text := wire.RefusedRecord, err.Error()
	var no wire.Refuse
	switch {
	case errors.As(err, &no): // the decision was ours
		return no
	case errors.Is(err, wire.ErrVersion):
		code = wire.RefusedVersion
	case errors.Is(err, wire.ErrUnsupported):
		code = wire.RefusedUnsupported
	case errors.Is(err, sock.ErrTooManyInFlight): // for as long as a step may take; that is not the peer's doing
		code, text = wire.RefusedBusy, "the producer has too many descriptors in flight; try again later"
	case errors.Is(err, ErrTimeout):
		code, text = wire.RefusedTimeout, "you took too long over a step"
	case errors.Is(err, ErrRate):
		code = wire.RefusedRate
	}
	return wire.Refuse{Code: code, Text: text}
}

// IsGone reports whether the peer has gone or has refused, and so need not be told why the
// conversation ends.
func IsGone(err error) bool {
	return errors.Is(err, sock.ErrPeerLost) || errors.Is(err, ErrRefused)
}

// IsBadRecord reports whether err is about a record of the peer, which can then be told so.
// A peer's refusal is not, although it may match [wire.ErrUnsupported].
func IsBadRecord(err error) bool {
	if errors.Is(err, ErrRefused) {
		return false
	}
	return (errors.Is(err, wire.ErrProtocol) && !errors.Is(err, ErrRate)) || errors.Is(err, wire.ErrUnsupported) || sock.IsBadRecord(err)
}

// Unexpected returns the error for a message that does not belong here.
func Unexpected(m wire.Message, state string) error {
	if r, ok := m.(wire.Refuse); ok {
		return &RefusalError{r.Code, r.Text}
	}
	return fmt.Errorf("%w: %s %s", ErrUnexpected, m.Type(), state)
}
