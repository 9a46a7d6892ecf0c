package fdstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gpufd/gpufd/sock"
)

// grace is how long a keeper that has the store may take to end when another comes: the
// connection of a killed keeper ends a little later.
const grace = 200 * time.Millisecond

// A session is the connection of the keeper that has the store.
type session struct {
	conn *sock.Conn
	done chan struct{} // nothing of it uses the store any more
}

// serve serves one keeper after the other until one sends EXIT or ctx is done. It
// closes l and everything that s holds, calls ended, and closes the connections that are left.
func serve(ctx context.Context, l *sock.Listener, s *store, ended func()) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	var now *session
	for ctx.Err() == nil {
		conn, err := l.Accept(ctx)
		if err != nil {
			pause(ctx, err)
			continue
		}
		if now.lasts(ctx) {
			turnAway(conn, now.conn.Peer())
			continue
		}
		now = &session{conn, make(chan struct{})}
		go now.run(ctx, s, end)
	}
	if now == nil {
		now = &session{done: make(chan struct{})}
		close(now.done)
	}
	<-now.done
	err := l.Close()
	s.close()
	ended()
	_ = now.conn.Close()
	return err
}

// pause keeps an error of Accept from being repeated without end. None of them is a
// reason to let go of anything.
func pause(ctx context.Context, err error) {
	if errors.Is(err, sock.ErrNotAdmitted) {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Millisecond):
	}
}

// lasts reports whether the session goes on.
func (n *session) lasts(ctx context.Context) bool {
	if n == nil {
		return false
	}
	const looks = 10 // a pause of the machine costs one of them, and not the whole grace
	for range looks {
		select {
		case <-n.done:
			return false
		case <-ctx.Done():
			return true
		case <-time.After(grace / looks):
		}
	}
	return true
}

// turnAway tells a keeper which process has the store, if that can be said
// without waiting.
func turnAway(conn *sock.Conn, by sock.Peer) {
	a := refuse(header{}, fmt.Errorf("%w: %v", ErrBusy, by))
	a.op |= answerBit
	_ = conn.TrySend(a.record())
	conn.Drop()
}

// run serves the keeper until its connection ends. It leaves the connection open if the
// store is to end.
func (n *session) run(ctx context.Context, s *store, end context.CancelFunc) {
	defer close(n.done)
	if n.serve(ctx, s) {
		end()
	}
	s.dropHalf()
	if ctx.Err() == nil {
		_ = n.conn.Close()
	}
}

// serve reports whether the store is to end.
func (n *session) serve(ctx context.Context, s *store) bool {
	for {
		rec, err := n.conn.Receive(ctx)
		var a answer
		switch {
		case err == nil:
			a = s.handle(rec.Data, rec.Files)
			_ = rec.Close()
		case sock.IsBadRecord(err):
			s.dropHalf()
			a = refuse(header{op: answerBit}, fmt.Errorf("%w: %w", ErrMalformed, err))
		default:
			return false
		}
		sent := n.send(ctx, a)
		if sent != nil || errors.Is(err, sock.ErrStuck) {
			return false
		}
		if a.op == opExit|answerBit && a.code == 0 {
			return true
		}
	}
}

// send sends an answer. Out of descriptors it sends a refusal instead.
func (n *session) send(ctx context.Context, a answer) error {
	files, err := duplicates(a.fds)
	if err != nil {
		a = refuse(a.header, fmt.Errorf("%w: %w", ErrFull, err))
	}
	err = n.conn.Send(ctx, a.record(), files...)
	_ = sock.CloseFiles(files) // the store has its own
	return err
}

// duplicates returns files with copies of descriptors, to be sent: a file closes its
// descriptor when it is collected.
func duplicates(fds []int) (files []*os.File, err error) {
	for _, fd := range fds {
		fd, err := duplicateFD(fd)
		if err != nil {
			_ = sock.CloseFiles(files)
			return nil, err
		}
		files = append(files, os.NewFile(uintptr(fd), "sent"))
	}
	return files, nil
}

func (a answer) record() []byte { return append(a.header.append(nil), a.body...) }
