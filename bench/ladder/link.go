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

// A link is one end of the conversation. What is sent stays the caller's; what is
// received is the caller's, too. At the end receive gives io.EOF. begin and end
// enclose a handoff, also where it fails.
type link interface {
	send(data []byte, file *os.File) error
	receive() (data []byte, came descriptor, err error)
	begin()
	end()
	close() error
}

// A descriptor came with a message, or none did. It is a file, or a bare number.
type descriptor struct {
	file   *os.File
	number int // where there is no file; -1 where nothing came
}

// none is what comes with most messages.
var none = descriptor{number: -1}

// received makes a descriptor of a number, which is -1 for none.
func received(fd int, bare bool) descriptor {
	if bare || fd < 0 {
		return descriptor{number: fd}
	}
	return descriptor{os.NewFile(uintptr(fd), "memory"), -1}
}

func (d descriptor) came() bool { return d.file != nil || d.number >= 0 }

func (d descriptor) fd() uintptr {
	if d.file != nil {
		return d.file.Fd()
	}
	return uintptr(d.number)
}

// toFile has to be called at most once: a bare number goes into the file.
func (d descriptor) toFile() *os.File {
	if d.file != nil {
		return d.file
	}
	return os.NewFile(uintptr(d.number), "memory")
}

func (d descriptor) close() error {
	switch {
	case d.file != nil:
		return d.file.Close()
	case d.number >= 0:
		return unix.Close(d.number)
	}
	return nil
}

// newLink owns fd.
func newLink(o *options, fd int) (l link, err error) {
	switch way := o.own(o.wait); way {
	case "raw", "block", "spin":
		if err := unix.SetNonblock(fd, false); err != nil {
			return nil, err
		}
		l = newBlocking(fd, way, o.bare)
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

// blocking waits in the system call, or spins from begin to end of a handoff.
type blocking struct {
	fd   int
	bare bool // what comes is made no file
	call messageCall
	idle messageCall // between handoffs
	busy messageCall // during one
}

func newBlocking(fd int, way string, bare bool) *blocking {
	b := &blocking{fd: fd, bare: bare, idle: messageCalls[way], busy: messageCalls[way]}
	if way == "spin" {
		b.idle = messageCalls["raw"]
	}
	b.call = b.idle
	return b
}

func (b *blocking) begin() { b.call = b.busy }
func (b *blocking) end()   { b.call = b.idle }

func (b *blocking) send(data []byte, file *os.File) error {
	return sendMessage(b.call, b.fd, data, file)
}

func (b *blocking) receive() ([]byte, descriptor, error) {
	data, fd, err := receiveMessage(b.call, b.fd, 0)
	return data, received(fd, b.bare), err
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

func (p *polling) receive() (data []byte, came descriptor, err error) {
	rerr := p.raw.Read(func(fd uintptr) bool {
		var got int
		data, got, err = receiveMessage(messageCalls["block"], int(fd), unix.MSG_DONTWAIT)
		came = received(got, false)
		return !errors.Is(err, unix.EAGAIN)
	})
	if rerr != nil {
		err = rerr
	}
	return data, came, err
}

func (p *polling) begin()       {}
func (p *polling) end()         {}
func (p *polling) close() error { return p.file.Close() }

// socket is package sock. Each wait has a deadline of its own, or that of the
// handoff, or none.
type socket struct {
	conn      *sock.Conn
	deadlines string // "each", "handoff", "no"
	ctx       context.Context
	cancel    context.CancelFunc
}

func newSocket(fd int, deadlines string) (*socket, error) {
	conn, err := sock.FromFile(os.NewFile(uintptr(fd), "socket"))
	return &socket{conn, deadlines, context.Background(), func() {}}, err
}

func (s *socket) begin() {
	if s.deadlines == "handoff" {
		s.ctx, s.cancel = context.WithTimeout(context.Background(), patience)
	}
}

func (s *socket) end() {
	s.cancel()
	s.ctx, s.cancel = context.Background(), func() {}
}

func (s *socket) bounded() (context.Context, context.CancelFunc) {
	if s.deadlines == "each" {
		return context.WithTimeout(context.Background(), patience)
	}
	return s.ctx, func() {}
}

func (s *socket) send(data []byte, file *os.File) error {
	ctx, cancel := s.bounded()
	defer cancel()
	if file == nil {
		return s.conn.Send(ctx, data)
	}
	return s.conn.Send(ctx, data, file)
}

func (s *socket) receive() ([]byte, descriptor, error) {
	ctx, cancel := s.bounded()
	defer cancel()
	rec, err := s.conn.Receive(ctx)
	if err != nil || len(rec.Files) == 0 {
		return rec.Data, none, err
	}
	return rec.Data, descriptor{rec.Take(0), -1}, nil
}

func (s *socket) close() error { return s.conn.Close() }

// hopper has another goroutine receive, always.
type hopper struct {
	link
	came chan message
}

type message struct {
	data []byte
	came descriptor
	err  error
}

func hopping(l link) *hopper {
	h := &hopper{l, make(chan message, 1)}
	go func() {
		for {
			var m message
			m.data, m.came, m.err = l.receive()
			h.came <- m
			if m.err != nil {
				close(h.came)
				return
			}
		}
	}()
	return h
}

// begin and end are not for the link: its goroutine may be in it. No flag that
// needs them goes with -hop.
func (h *hopper) begin() {}
func (h *hopper) end()   {}

func (h *hopper) receive() ([]byte, descriptor, error) {
	m, ok := <-h.came
	if !ok {
		return nil, none, io.EOF
	}
	return m.data, m.came, m.err
}
