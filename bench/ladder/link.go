package main

import (
	"context"
	"errors"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/sock"
)

// patience bounds a wait where the way to wait has bounds.
const patience = time.Minute

// most is the longest message and the most that come with it.
const most = 1 << 10

// A link is one end of the conversation. What is sent stays the caller's; the file
// that is received is the caller's, too. At the end receive gives io.EOF.
type link interface {
	send(data []byte, file *os.File) error
	receive() (data []byte, file *os.File, err error)
	close() error
}

// newLink owns fd.
func newLink(o *options, fd int) (l link, err error) {
	switch way := o.own(o.wait); way {
	case "raw", "block":
		if err := unix.SetNonblock(fd, false); err != nil {
			return nil, err
		}
		l = &blocking{fd: fd, call: messageCalls[way]}
	case "poll":
		l, err = newPolling(fd)
	case "sock":
		l, err = newSocket(fd, o.deadlines)
	}
	if err == nil && o.own(o.hop) == "yes" {
		l = hopping(l)
	}
	return l, err
}

// blocking waits in the system call.
type blocking struct {
	fd   int
	call messageCall
}

func (b *blocking) send(data []byte, file *os.File) error {
	return sendMessage(b.call, b.fd, data, file)
}

func (b *blocking) receive() ([]byte, *os.File, error) {
	return receiveMessage(b.call, b.fd, 0)
}

func (b *blocking) close() error { return unix.Close(b.fd) }

// polling waits in the runtime's poller.
type polling struct {
	file *os.File
	raw  syscall.RawConn
}

func newPolling(fd int) (*polling, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "socket")
	raw, err := f.SyscallConn()
	return &polling{f, raw}, err
}

func (p *polling) send(data []byte, file *os.File) (err error) {
	werr := p.raw.Write(func(fd uintptr) bool {
		err = sendMessage(messageCalls["block"], int(fd), data, file)
		return !errors.Is(err, unix.EAGAIN)
	})
	return errors.Join(werr, err)
}

func (p *polling) receive() (data []byte, file *os.File, err error) {
	rerr := p.raw.Read(func(fd uintptr) bool {
		data, file, err = receiveMessage(messageCalls["block"], int(fd), unix.MSG_DONTWAIT)
		return !errors.Is(err, unix.EAGAIN)
	})
	if rerr != nil {
		err = rerr
	}
	return data, file, err
}

func (p *polling) close() error { return p.file.Close() }

// socket is package sock.
type socket struct {
	conn      *sock.Conn
	deadlines bool
}

func newSocket(fd int, deadlines bool) (*socket, error) {
	conn, err := sock.FromFile(os.NewFile(uintptr(fd), "socket"))
	return &socket{conn, deadlines}, err
}

func (s *socket) bounded() (context.Context, context.CancelFunc) {
	if s.deadlines {
		return context.WithTimeout(context.Background(), patience)
	}
	return context.Background(), func() {}
}

func (s *socket) send(data []byte, file *os.File) error {
	ctx, cancel := s.bounded()
	defer cancel()
	if file == nil {
		return s.conn.Send(ctx, data)
	}
	return s.conn.Send(ctx, data, file)
}

func (s *socket) receive() ([]byte, *os.File, error) {
	ctx, cancel := s.bounded()
	defer cancel()
	rec, err := s.conn.Receive(ctx)
	if err != nil {
		return nil, nil, err
	}
	if len(rec.Files) == 0 {
		return rec.Data, nil, nil
	}
	return rec.Data, rec.Take(0), nil
}

func (s *socket) close() error { return s.conn.Close() }

// hopper has another goroutine receive, always.
type hopper struct {
	link
	came chan message
}

type message struct {
	data []byte
	file *os.File
	err  error
}

func hopping(l link) *hopper {
	h := &hopper{l, make(chan message, 1)}
	go func() {
		for {
			var m message
			m.data, m.file, m.err = l.receive()
			h.came <- m
			if m.err != nil {
				close(h.came)
				return
			}
		}
	}()
	return h
}

func (h *hopper) receive() ([]byte, *os.File, error) {
	m, ok := <-h.came
	if !ok {
		return nil, nil, io.EOF
	}
	return m.data, m.file, m.err
}
