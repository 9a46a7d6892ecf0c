package interop

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/cli"
)

// A lingering descriptor is a TCP socket with unsent data and SO_LINGER. Its sender has
// closed it, so that whoever drops the last reference to it waits: who closes it, who
// closes a socket in whose queue it lies, and who receives it without room for it.

// prompt is how long a program may take that a lingering descriptor would hold for a day.
const prompt = 10 * time.Second

// lingerTime is in seconds.
const lingerTime = 100000

// A lingerer sends lingering descriptors, and keeps what they are connected to.
type lingerer struct {
	t      *testing.T
	conns  []int // to victims
	ends   []int // the other ends of the descriptors, which never read
	landed int   // descriptors that lie in queues, or did

	generation uint64 // of the offer that it was sent
}

// newLingerer resets all that it has sent when the test ends: then nobody waits any more.
func newLingerer(t *testing.T) *lingerer {
	x := &lingerer{t: t}
	t.Cleanup(func() {
		for _, fd := range x.ends {
			reset(fd)
		}
		for _, fd := range x.conns {
			unix.Close(fd)
		}
	})
	return x
}

// reset closes a TCP socket, and whoever lingers at its other end.
func reset(fd int) {
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	unix.Close(fd)
}

// connect adds a connection to who listens at path, as a user of that number. A thread
// that has become another user ends with its goroutine.
func (x *lingerer) connect(path string, uid int) int {
	x.t.Helper()
	fd := x.socket()
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		keep := ^uintptr(0)
		_, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep)
		if errno != 0 {
			done <- fmt.Errorf("setresuid %d: %w", uid, errno)
			return
		}
		done <- uninterrupted(func() error { return unix.Connect(fd, &unix.SockaddrUnix{Name: path}) })
	}()
	require.NoError(x.t, <-done)
	return fd
}

// uninterrupted repeats a system call that a signal has interrupted: the runtime sends some.
func uninterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// socket makes one whose connect does not wait for long.
func (x *lingerer) socket() int {
	x.t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(x.t, err)
	x.conns = append(x.conns, fd)
	limit := unix.NsecToTimeval(int64(prompt)) // of connect
	require.NoError(x.t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit))
	return fd
}

// accept listens at path, starts the victim and returns its connection, with its ATTACH read.
func (x *lingerer) accept(path string, victim func() *programs.Process) (*programs.Process, int) {
	x.t.Helper()
	listener := x.socket()
	require.NoError(x.t, unix.Bind(listener, &unix.SockaddrUnix{Name: path}))
	x.t.Cleanup(func() { require.NoError(x.t, unix.Unlink(path)) })
	require.NoError(x.t, unix.Listen(listener, 1))
	p := victim()
	require.True(x.t, x.awaits(listener, p.Name), p.Dump())
	fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
	require.NoError(x.t, err, p.Dump())
	x.conns = append(x.conns, fd)
	require.True(x.t, x.awaits(fd, p.Name), p.Dump())
	asked := programs.Wish(1, cli.OfferName)[programs.AtType:] // flags and capabilities may differ
	require.Equal(x.t, asked[:2], programs.Hear(fd)[programs.AtType:programs.AtType+2])
	return p, fd
}

// descriptor makes one that lingers.
func (x *lingerer) descriptor() int {
	x.t.Helper()
	listener, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(x.t, err)
	defer unix.Close(listener)
	require.NoError(x.t, unix.SetsockoptInt(listener, unix.SOL_SOCKET, unix.SO_RCVBUF, 4096))
	require.NoError(x.t, unix.Bind(listener, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	require.NoError(x.t, unix.Listen(listener, 1))
	address, err := unix.Getsockname(listener)
	require.NoError(x.t, err)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	require.NoError(x.t, err)
	require.NoError(x.t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4096))
	if err := unix.Connect(fd, address); !errors.Is(err, unix.EINPROGRESS) {
		require.NoError(x.t, err)
	}
	require.True(x.t, x.awaits(listener, "the loopback"))
	end, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
	require.NoError(x.t, err)
	x.ends = append(x.ends, end)
	for junk := make([]byte, 1<<16); err == nil; {
		_, err = unix.Write(fd, junk)
	}
	require.ErrorIs(x.t, err, unix.EAGAIN)
	require.NoError(x.t, unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: lingerTime}))
	return fd
}

// send sends a record with n lingering descriptors, to somebody who is halted: else this
// side could be the last one to close. A socket that takes no descriptors gets garbage
// without any instead.
func (x *lingerer) send(fd int, record []byte, n int) {
	x.t.Helper()
	fds := make([]int, n)
	for i := range fds {
		fds[i] = x.descriptor()
	}
	err := unix.Sendmsg(fd, record, unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	for _, evil := range fds {
		if err != nil {
			reset(evil)
		} else {
			unix.Close(evil)
		}
	}
	if errors.Is(err, unix.EPERM) {
		x.sendBare(fd, []byte("garbage"))
		return
	}
	require.NoError(x.t, err)
	x.landed += n
}

func (x *lingerer) sendBare(fd int, record []byte) {
	x.t.Helper()
	require.NoError(x.t, unix.Sendmsg(fd, record, nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT))
}

// sendMany is send of more records than are read of one who is refused.
func (x *lingerer) sendMany(fd int, record []byte) {
	x.t.Helper()
	for n := range 40 {
		if x.send(fd, record, 1); x.landed <= n {
			return // the socket takes none
		}
	}
}

// offered asks for the offer, takes it as a good consumer does and returns its generation.
func (x *lingerer) offered(fd int) uint64 {
	x.t.Helper()
	x.sendBare(fd, programs.Wish(1, cli.OfferName))
	require.True(x.t, x.awaits(fd, "the producer"))
	b := programs.Hear(fd)
	require.Greater(x.t, len(b), 16+56)
	require.EqualValues(x.t, programs.TypeOffer, binary.LittleEndian.Uint16(b[6:]))
	return binary.LittleEndian.Uint64(b[16+48:])
}

// answered waits until the victim has said something on a connection, or hung up, and
// hangs up.
func (x *lingerer) answered(fd int) {
	x.t.Helper()
	x.awaits(fd, "the victim")
	_ = unix.Shutdown(fd, unix.SHUT_RDWR)
}

// awaits waits for a record, a connection or an end, which is somebody else's to make.
func (x *lingerer) awaits(fd int, whose string) bool {
	x.t.Helper()
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n := 0
	err := uninterrupted(func() (err error) { n, err = unix.Poll(poll, int(prompt.Milliseconds())); return err })
	if err != nil || n == 0 {
		x.t.Errorf("%s has said nothing within %s (%v)", whose, prompt, err)
	}
	return n > 0
}

// endsPromptly waits for a program's end, and kills it if that does not come.
func endsPromptly(t *testing.T, p *programs.Process, why string) bool {
	t.Helper()
	began := time.Now()
	select {
	case <-p.Done:
		t.Logf("%s ended after %s %s", p.Name, time.Since(began).Round(time.Millisecond), why)
		return true
	case <-time.After(prompt):
		t.Errorf("%s still ran after %s %s", p.Name, prompt, why) // its output follows
		p.Kill()
		return false
	}
}

// A raid is what is done to a producer with lingering descriptors.
type raid struct {
	name     string
	flags    []string // of gpufd's producer
	uid      int      // of who does it
	conns    int      // how many connections it makes
	offered  bool     // it was sent the offer before
	attack   func(x *lingerer, fd int)
	unheard  bool // the producer is interrupted before it has seen any of it
	portable bool // it can be done to the producer in Python as well
	code     int  // the producer's exit code
}

// raids are of users who are admitted, but for one.
var raids = []raid{
	{name: "not admitted", flags: args("-allow-uid", "4242"), uid: programs.OtherUID, conns: 1,
		attack: func(x *lingerer, fd int) { x.send(fd, programs.Wish(1, cli.OfferName), 3) }},
	{name: "with ATTACH", conns: 1, portable: true,
		attack: func(x *lingerer, fd int) { x.sendMany(fd, programs.Wish(1, cli.OfferName)) }},
	{name: "with garbage", conns: 1, portable: true,
		attack: func(x *lingerer, fd int) { x.sendMany(fd, []byte("garbage")) }},
	{name: "with MAPPED", conns: 1, offered: true, portable: true, code: 1,
		attack: func(x *lingerer, fd int) {
			x.sendMany(fd, programs.Record(programs.TypeMapped, programs.Number(x.generation)...))
		}},
	{name: "instead of MAPPED", conns: 1, offered: true, portable: true, code: 1,
		attack: func(x *lingerer, fd int) { x.sendMany(fd, programs.Progress()) }},
	{name: "over its places", flags: args("-connections-per-peer", "1"), conns: 5,
		attack: func(x *lingerer, fd int) { x.send(fd, programs.Wish(1, cli.OfferName), 1) }},
	{name: "in the backlog", flags: args("-connections-per-peer", "1"), conns: 100, portable: true, unheard: true,
		attack: func(x *lingerer, fd int) { x.send(fd, programs.Wish(1, cli.OfferName), 1) }},
}

// TestLingeringDescriptorsForProducers defends invariant 2: a producer serves others while
// it has lingering descriptors to drop, and ends when it is told to.
//
//fault:rows 72
func TestLingeringDescriptorsForProducers(t *testing.T) {
	programs.Parallel(t)
	cutest.ProvenOnSoft(t)
	for _, producer := range []peer{goProducer, pyProducer} {
		for _, r := range raids {
			if producer.name != goProducer.name && (!r.portable || cutest.Emulated()) {
				continue
			}
			t.Run(producer.name+" "+r.name, func(t *testing.T) {
				programs.Parallel(t)
				eachKernel(t, func(t *testing.T, k kernel) { r.on(t, k, producer) })
			})
		}
	}
}

func (r raid) on(t *testing.T, k kernel, program peer) {
	s := programs.OpenScene(t)
	flags := args("-consumers", "0", "-timeout", "2s")
	if program.name == goProducer.name {
		flags = append(flags, r.flags...)
	}
	producer := k.serving(s, program, flags...)
	x := newLingerer(t)
	fds := r.land(x, s.Socket, producer)
	require.False(t, k.older && x.landed == 0, "nothing was sent")
	if r.unheard {
		producer.Signal(syscall.SIGINT)
	}
	require.NoError(t, programs.Resume(producer))
	if !r.unheard {
		for _, fd := range fds {
			if x.answered(fd); t.Failed() {
				break
			}
		}
		served := s.Consumer("-timeout", "30s")
		if endsPromptly(t, served, "where a lingering descriptor had come before it") {
			served.Succeeds()
		}
		producer.Signal(syscall.SIGINT)
	}
	if endsPromptly(t, producer, "behind SIGINT") {
		require.Equal(t, r.code, producer.Wait(), producer.Dump())
	}
}

// land has all that is sent lie in queues when it returns, and the producer halted.
func (r raid) land(x *lingerer, path string, producer *programs.Process) (fds []int) {
	x.t.Helper()
	if !r.offered {
		producer.Stop()
	}
	for range r.conns {
		fds = append(fds, x.connect(path, r.uid))
	}
	if r.offered {
		x.generation = x.offered(fds[0])
		producer.Stop()
	}
	for _, fd := range fds {
		r.attack(x, fd)
	}
	return fds
}

// plots are what a producer does to a consumer that has asked for its offer, while that is
// halted. Afterwards it hangs up when the consumer has said something, or never.
var plots = []struct {
	name   string
	attack func(x *lingerer, fd int)
	stays  bool
}{
	{name: "more than an offer has", attack: func(x *lingerer, fd int) { x.send(fd, bait(x.t), 4) }},
	{name: "as an offer's", attack: func(x *lingerer, fd int) { x.send(fd, bait(x.t), 1) }},
	{name: "with progress", attack: func(x *lingerer, fd int) { x.send(fd, programs.Progress(), 3) }},
	{name: "many with progress", stays: true, attack: func(x *lingerer, fd int) { x.sendMany(fd, programs.Progress()) }},
	{name: "behind a refusal", attack: func(x *lingerer, fd int) {
		x.sendBare(fd, programs.Record(programs.TypeRefuse, 1, 0, 0, 0))
		x.send(fd, programs.Progress(), 3)
	}},
}

// TestLingeringDescriptorsForConsumers defends invariant 2: a consumer ends within its
// timeout, and says what is wrong.
//
//fault:rows 72
func TestLingeringDescriptorsForConsumers(t *testing.T) {
	programs.Parallel(t)
	for _, consumer := range []peer{goConsumer, pyConsumer, cConsumer} {
		if cutest.Emulated() && consumer.name != goConsumer.name {
			continue
		}
		for _, plot := range plots {
			t.Run(consumer.name+" "+plot.name, func(t *testing.T) {
				programs.Parallel(t)
				if plot.name != "as an offer's" { // which the driver is given
					cutest.ProvenOnSoft(t)
				}
				eachKernel(t, func(t *testing.T, k kernel) {
					s, x := programs.NewScene(t), newLingerer(t)
					p, fd := x.accept(s.Socket, func() *programs.Process { return k.start(s, consumer, "-timeout", "2s") })
					p.Stop()
					plot.attack(x, fd)
					require.Positive(t, x.landed, "nothing was sent")
					require.NoError(t, programs.Resume(p))
					if !plot.stays {
						x.answered(fd)
					}
					if endsPromptly(t, p, "with -timeout 2s") {
						p.Fails(1)
					}
				})
			})
		}
	}
}

// bait is an offer of one chunk.
func bait(t *testing.T) []byte {
	t.Helper()
	const size = 2 * programs.MiB
	id := cutest.Device(t).UUID()
	body := append([]byte{byte(cutest.Kind()), 1, 1, 0, 1, 0, 0, 0}, id[:]...)
	for _, n := range []uint64{size, size, size, 1, 1 << 32} { // the last: first is 0, and fds 1
		body = append(body, programs.Number(n)...)
	}
	body = append(body, byte(len(cli.OfferName)), 0, 16, 0)
	body = append(body, cli.OfferName...)
	return programs.Record(programs.TypeOffer, append(append(body, programs.Number(size/4)...), programs.Number(0)...)...)
}
