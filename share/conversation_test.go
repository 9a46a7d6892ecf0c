package share

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// A line is one step of a conversation by hand: it says a record, hears one of that type, or
// does something.
type line struct {
	says  []byte
	files []*os.File
	hears wire.Type
	does  func(*sock.Conn)
}

func say(m wire.Message, files ...*os.File) line { return line{says: wire.Encode(m), files: files} }

func hear(m wire.Message) line { return line{hears: m.Type()} }

func do(f func(*sock.Conn)) line { return line{does: f} }

// typ is the type of the record that the line says or hears.
func (l line) typ() wire.Type {
	if l.says == nil {
		return l.hears
	}
	return wire.Type(binary.LittleEndian.Uint16(l.says[6:]))
}

// play is one side of a conversation, to the end of lines.
func play(ctx context.Context, conn *sock.Conn, lines []line) error {
	for i, l := range lines {
		if err := l.play(ctx, conn); err != nil {
			return fmt.Errorf("line %d: %w", i, err)
		}
	}
	return nil
}

func (l line) play(ctx context.Context, conn *sock.Conn) error {
	if l.does != nil {
		l.does(conn)
		return nil
	}
	if l.says != nil {
		return conn.Send(ctx, l.says, l.files...)
	}
	rec, err := conn.Receive(ctx)
	if err != nil {
		return err
	}
	m, err := wire.Decode(rec.Data)
	if err == nil && m.Type() != l.hears {
		err = fmt.Errorf("heard %#v and not %s", m, l.hears)
	}
	return errors.Join(err, rec.Close())
}

// played is what became of lines that a producer was to play, and the last that it heard
// after them.
type played struct {
	err  error
	last wire.Message
}

// verdictOf is what a consumer says in the end, or nil if it just goes. It waits for its
// producer to close then.
func verdictOf(ctx context.Context, conn *sock.Conn) (wire.Message, error) {
	for {
		rec, err := conn.Receive(ctx)
		if errors.Is(err, sock.ErrPeerLost) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		_ = rec.Close()
		m, err := wire.Decode(rec.Data)
		switch m.(type) {
		case nil, wire.Verdict, wire.Refuse:
			return m, err
		}
	}
}

// producing is a producer that plays lines, and then hears its consumer out.
func producing(t *testing.T, lines []line, then ...func(*sock.Conn)) (path string, became <-chan played) {
	c := make(chan played, 1)
	return impostor(t, func(conn *sock.Conn) {
		p := played{err: play(soon(t), conn, lines)}
		if p.err == nil {
			for _, f := range then {
				f(conn)
			}
			p.last, p.err = verdictOf(soon(t), conn)
		}
		c <- p
	}), c
}

// FAULTS 31: whoever says twice that it has mapped the memory is not believed.
func TestFault31_MappedIsSaidOnce(t *testing.T) {
	dev, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	s := put(t, srv, buf)
	conn, mapped := dialed(t, srv), say(isMapped(buf))
	require.NoError(t, play(soon(t), conn, []line{say(wants(dev)), hear(wire.Offer{}), mapped, mapped}))
	requireRefusal(t, conn, RefusedRecord, "mapped twice")
	require.NoError(t, conn.Close())
	require.ErrorIs(t, s.await(t, Ended, 1).Err, ErrProtocol)
	require.Len(t, s.of(Mapped), 1)
}

// Invariant 2: a producer that takes nothing more and keeps the connection open
// is as good as gone. Nobody waits for it without end.
func TestProducerThatOnlySends(t *testing.T) {
	dev, ctx := leavesNothing(t)
	tr := truthOf(t, ctx)
	deaf, over := make(chan error), make(chan struct{})
	stop := do(func(conn *sock.Conn) {
		f, err := conn.File()
		if err == nil {
			err = errors.Join(unix.Shutdown(int(f.Fd()), unix.SHUT_RD), f.Close())
		}
		deaf <- err
		<-over
	})
	path, _ := producing(t, []line{say(tr.Offer, tr.files...), hear(wire.Mapped{}), stop})
	att := ok(Attach(soon(t), path, "data", dev, attachOption(func(o *attachOptions) { o.Goodbye = brief })))(t)
	require.NoError(t, <-deaf)
	require.ErrorIs(t, att.Progress(soon(t), 1, 2), sock.ErrPeerLost)
	require.ErrorIs(t, awaitDone(t, att), sock.ErrPeerLost)
	require.ErrorIs(t, att.Report(soon(t), nil), sock.ErrPeerLost)
	close(over)
	requireNoise(t, ctx, att.Buffer(), 1)
	require.NoError(t, att.Close())
}
