package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/bench/internal/rival"
)

// A producer hands a fresh buffer to its consumer each time it is asked.
type producer struct {
	side
	consumer *exec.Cmd
	line     int    // the socket, to hang up
	offers   uint64 // made so far
}

func newProducer(o *options, args []string) (*producer, error) {
	fds, err := newPair()
	if err != nil {
		return nil, err
	}
	p := &producer{}
	if p.line, err = unix.FcntlInt(uintptr(fds[0]), unix.F_DUPFD_CLOEXEC, 3); err != nil {
		return nil, err
	}
	if err := p.start(os.NewFile(uintptr(fds[1]), "socket"), o, args); err != nil {
		return nil, err
	}
	if p.side, err = o.open(); err == nil {
		p.link, err = newLink(o, fds[0])
	}
	if err == nil {
		err = p.hear()
	}
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func newPair() ([2]int, error) {
	return unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
}

// start starts the consumer, this program with these flags unless there is another.
func (p *producer) start(end *os.File, o *options, args []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	argv := append(append([]string{self}, args...), "-half", "consumer")
	if o.with != "" {
		argv = strings.Split(o.with, ":")
	}
	p.consumer = exec.Command(argv[0], argv[1:]...)
	p.consumer.Stderr = os.Stderr
	p.consumer.ExtraFiles = []*os.File{end}
	return errors.Join(p.consumer.Start(), end.Close())
}

func (p *producer) serve(stdin io.Reader, stdout io.Writer) error {
	hello := rival.Answer{Name: "ladder", Info: p.dev.Driver().String()}
	err := rival.Serve(stdin, stdout, hello, map[string]rival.Handler{"handoff": p.handoff})
	return errors.Join(err, p.close())
}

// close hangs up, which ends the consumer.
func (p *producer) close() error {
	err := errors.Join(unix.Shutdown(p.line, unix.SHUT_RDWR), unix.Close(p.line), p.consumer.Wait())
	if p.link != nil {
		err = errors.Join(err, p.link.close())
	}
	return errors.Join(err, p.ctx.Close())
}

// hear takes an answer, which is what the consumer failed with.
func (p *producer) hear() error {
	data, _, err := p.link.receive()
	if err != nil {
		return err
	}
	return told(data)
}

// handoff SIZE 1
func (p *producer) handoff(args []uint64) (a rival.Answer, err error) {
	if len(args) != 2 || args[1] != 1 || args[0] == 0 || args[0]%granularity != 0 {
		return a, errors.New("want: handoff SIZE 1")
	}
	if err := p.nudge(); err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, p.part()) }()
	if err := p.hear(); err != nil {
		return a, err
	}
	p.offers++
	st := steps{side: "producer", all: make([]rival.Step, 0, 16)}
	m, err := p.make(args[0], &st)
	if err != nil {
		return a, err
	}
	a, err = p.hand(m, args[0], &st)
	from := rival.Now()
	err = errors.Join(err, m.close())
	a.Steps = append(a.Steps, rival.Step{Side: "producer", Name: "release", At: from, NS: rival.Now() - from})
	return a, err
}

// nudge wakes the consumer, and gives it a connection if each handoff is to have one.
func (p *producer) nudge() error {
	if !p.connect {
		p.link.begin()
		return p.link.send(offer{}.encode(), nil)
	}
	fds, err := newPair()
	if err != nil {
		return err
	}
	end := os.NewFile(uintptr(fds[1]), "socket")
	err = errors.Join(p.link.send(offer{}.encode(), end), end.Close())
	if err = errors.Join(err, p.meet(fds[0])); err == nil {
		p.link.begin()
	}
	return err
}

// hand hands m over and compares the salts.
func (p *producer) hand(m memory, size uint64, st *steps) (a rival.Answer, err error) {
	salt := p.offers * 0x9e3779b97f4a7c15
	if err := p.fill(m, size, salt); err != nil {
		return a, err
	}
	from := rival.Now()
	if err := m.export(); err != nil {
		return a, err
	}
	st.took("export", from)
	msg := offer{size, 1, 1}.encode()
	t0 := rival.Now()
	if err := p.link.send(msg, m.file()); err != nil {
		return a, err
	}
	st.took("send", t0)
	ack, _, err := p.link.receive()
	t1 := rival.Now()
	if err != nil {
		return a, err
	}
	if err := told(ack); err != nil {
		return a, err
	}
	data, _, err := p.link.receive()
	if err != nil {
		return a, err
	}
	r, err := decodeReport(bytes.Clone(data))
	if err = errors.Join(err, r.err); err != nil {
		return a, err
	}
	if r.salts != [2]uint64{salt, salt} {
		return a, fmt.Errorf("salt: wrote %#x, the consumer read %#x and %#x", salt, r.salts[0], r.salts[1])
	}
	return answer(t0, t1, st.all, r.steps), nil
}

// answer puts the steps on the clock of the handoff. The reply begins with the
// acknowledgement.
func answer(t0, t1 int64, all ...[]rival.Step) rival.Answer {
	a := rival.Answer{NS: t1 - t0}
	for _, steps := range all {
		for _, s := range steps {
			if s.Name == "ack" {
				a.Steps = append(a.Steps, rival.Step{Side: "producer", Name: "reply", At: s.At - t0, NS: t1 - s.At})
			}
			s.At -= t0
			a.Steps = append(a.Steps, s)
		}
	}
	return a
}
