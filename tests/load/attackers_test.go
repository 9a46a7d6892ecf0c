package load

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/testenv"
)

// The kinds of attackers, each a process of its own, with how many connections it
// has at once and what it does on one.
var attackers = map[string]struct {
	connections int
	attack      func(*attacker)
}{
	"garbage":   {4, (*attacker).garbage},
	"floods":    {4, (*attacker).flood},
	"stalls":    {12, (*attacker).stall},
	"fd bombs":  {8, (*attacker).bomb},
	"half-open": {6, (*attacker).halfOpen},
	"lies":      {4, (*attacker).lie},
}

// Counters of attackers.
const (
	countAttacks = "attacks"
	countOffers  = "offers"  // that they were sent
	countRecords = "records" // that they sent
)

// attack does what the task names from go to halt.
func attack(do task) error {
	kind := attackers[do.What]
	var counts tally
	bag := testenv.Got(openBag())
	defer bag.close()
	return obey(func(ctx context.Context) error {
		var wg sync.WaitGroup
		for i := range kind.connections {
			wg.Go(func() {
				luck := rand.New(rand.NewPCG(uint64(i), uint64(do.Salt)))
				for ctx.Err() == nil {
					e := &attacker{ctx: ctx, socket: do.Socket, counts: &counts, luck: luck, bag: bag}
					if err := e.connect(); err != nil {
						e.pause(10 * time.Millisecond) // the backlog is full, say
						continue
					}
					kind.attack(e)
					unix.Close(e.fd)
					counts.add(countAttacks, 1)
				}
			})
		}
		wg.Wait()
		return nil
	}, counts.all)
}

// An attacker is one hostile connection. It has a socket without
// any of the library's care.
type attacker struct {
	ctx    context.Context
	socket string
	fd     int
	counts *tally
	luck   *rand.Rand
	bag    bag
}

// connect bounds every call, so that an attacker always sees that it is to halt.
func (e *attacker) connect() (err error) {
	e.fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	soon := unix.NsecToTimeval(int64(200 * time.Millisecond))
	for _, option := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err == nil {
			err = unix.SetsockoptTimeval(e.fd, unix.SOL_SOCKET, option, &soon)
		}
	}
	if err == nil {
		err = unix.Connect(e.fd, &unix.SockaddrUnix{Name: e.socket})
	}
	if err != nil {
		unix.Close(e.fd)
	}
	return err
}

func (e *attacker) send(record []byte, fds ...int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	err := unix.Sendmsg(e.fd, record, oob, nil, unix.MSG_NOSIGNAL)
	if err == nil {
		e.counts.add(countRecords, 1)
	}
	return err
}

// await is hear that waits for as long as it may: a producer under siege takes its time.
func (e *attacker) await() []byte {
	poll := []unix.PollFd{{Fd: int32(e.fd), Events: unix.POLLIN}}
	for e.ctx.Err() == nil {
		if n, err := unix.Poll(poll, 200); n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return programs.Hear(e.fd)
}

// pause ends early when the attacker is to halt.
func (e *attacker) pause(d time.Duration) {
	select {
	case <-e.ctx.Done():
	case <-time.After(d):
	}
}

// linger waits until the producer hangs up, or the attacker is to halt. Now and then
// it does something.
func (e *attacker) linger(every time.Duration, something func() error) {
	for e.ctx.Err() == nil {
		poll := []unix.PollFd{{Fd: int32(e.fd)}}
		if n, _ := unix.Poll(poll, 0); n > 0 { // it waits for nothing but the end
			return
		}
		if something != nil && something() != nil {
			return
		}
		e.pause(every)
	}
}

// attach asks for the offer as a good consumer would, and returns the generation
// that it was offered, if it was.
func (e *attacker) attach() (generation uint64, ok bool) {
	if e.send(programs.Wish(1, cli.OfferName)) != nil {
		return 0, false
	}
	b := e.await()
	if len(b) < 16+56 || binary.LittleEndian.Uint16(b[6:]) != programs.TypeOffer {
		return 0, false
	}
	e.counts.add(countOffers, 1)
	return binary.LittleEndian.Uint64(b[16+48:]), true
}

func (e *attacker) chance(n int) bool { return e.luck.IntN(n) == 0 }

func (e *attacker) noise(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(e.luck.Uint32())
	}
	return b
}

// garbage sends records of random bytes and lengths, some that begin well.
func (e *attacker) garbage() {
	if e.chance(4) {
		e.attach()
	}
	for range 1 + e.luck.IntN(20) {
		b := e.noise(e.luck.IntN(1 << e.luck.IntN(18)))
		if e.chance(2) {
			b = append(programs.Record(uint16(e.luck.IntN(12)))[:8+e.luck.IntN(9)], b...)
		}
		if e.send(b) != nil { // too long, or told to go
			return
		}
	}
}

// flood sends valid records as fast as it can, before or after attaching.
func (e *attacker) flood() {
	if e.chance(2) {
		generation, ok := e.attach()
		if ok && e.chance(2) {
			_ = e.send(programs.Record(programs.TypeMapped, programs.Number(generation)...))
		}
	}
	p := programs.Progress()
	for end := time.Now().Add(300 * time.Millisecond); e.ctx.Err() == nil && time.Now().Before(end); {
		if e.send(p) != nil {
			return
		}
	}
}

// stall keeps the connection and says nothing, or little.
func (e *attacker) stall() {
	switch e.luck.IntN(5) {
	case 0:
		e.linger(50*time.Millisecond, nil)
	case 1:
		e.linger(time.Second, func() error { return e.send(e.noise(1)) })
	case 2:
		e.attach()
		e.linger(time.Second, func() error { return e.send(programs.Progress()) })
	case 3: // and never read
		_ = e.send(programs.Wish(1, cli.OfferName))
		e.linger(50*time.Millisecond, nil)
	case 4:
		if generation, ok := e.attach(); ok {
			_ = e.send(programs.Record(programs.TypeMapped, programs.Number(generation)...))
		}
		e.linger(50*time.Millisecond, nil)
	}
}

// bomb sends as many descriptors as go into a record, of all kinds, the
// connection itself among them.
func (e *attacker) bomb() {
	records := [][]byte{programs.Progress(), programs.Wish(1, cli.OfferName), e.noise(100), {0}, programs.Record(programs.TypeMapped, programs.Number(1)...)}
	if e.chance(2) {
		e.attach()
	}
	for range 30 {
		fds := make([]int, 253)
		for i := range fds {
			fds[i] = e.bag.fds[e.luck.IntN(len(e.bag.fds))]
		}
		fds[0] = e.fd
		if e.send(records[e.luck.IntN(len(records))], fds...) != nil {
			return
		}
	}
}

// halfOpen closes one direction, or the whole, at an unusual time.
func (e *attacker) halfOpen() {
	if e.chance(2) {
		_ = e.send(programs.Wish(1, cli.OfferName))
	}
	switch e.luck.IntN(4) {
	case 0:
		_ = unix.Shutdown(e.fd, unix.SHUT_WR)
		e.linger(20*time.Millisecond, nil)
	case 1:
		_ = unix.Shutdown(e.fd, unix.SHUT_RD)
		e.linger(20*time.Millisecond, func() error { return e.send(programs.Progress()) })
	case 2: // gone at once
	case 3: // many that nobody has accepted yet
		for range 20 {
			if more := (&attacker{socket: e.socket}); more.connect() == nil {
				defer unix.Close(more.fd)
			}
		}
	}
}

// lie says what is well-formed and wrong.
func (e *attacker) lie() {
	good, bad := []byte{1, 0, 0, 0}, append([]byte{0, 0, 0xff, 0}, e.noise(255)...)
	lies := [][]byte{
		programs.Record(programs.TypeAttach), programs.Wish(2, cli.OfferName), programs.Wish(3, cli.OfferName), programs.Wish(1, "no such offer"), programs.Wish(1, "\x1b[2J"), programs.Wish(1, "\xff\xfe"),
		programs.Record(programs.TypeAttach, 9, 1, 0, 0, 0, 0), programs.Record(programs.TypeAttach, 1, 1, 0, 0, 0xff, 0xff),
		programs.Record(programs.TypeMapped, programs.Number(e.luck.Uint64())...), programs.Record(programs.TypeMapped, 1), programs.Record(programs.TypeVerdict, good...), programs.Record(programs.TypeVerdict, bad...),
		programs.Record(programs.TypeVerdict, 7, 0, 0, 0), programs.Record(programs.TypeRevoke, 0, 0), programs.Record(programs.TypePublish, programs.Number(1)...), programs.Record(programs.TypeOffer, e.noise(80)...),
		append(programs.Record(programs.TypeProgress), 0), programs.Record(99, e.noise(9)...),
	}
	attached := false
	if e.chance(2) {
		generation, ok := e.attach()
		lies = append(lies, programs.Record(programs.TypeMapped, programs.Number(generation+1)...), programs.Wish(1, cli.OfferName))
		if attached = ok; e.chance(2) {
			_ = e.send(programs.Record(programs.TypeMapped, programs.Number(generation)...))
			lies = append(lies, programs.Record(programs.TypeMapped, programs.Number(generation)...))
		}
	}
	for range 1 + e.luck.IntN(3) {
		if e.send(lies[e.luck.IntN(len(lies))]) != nil {
			return
		}
	}
	if !attached || e.chance(2) {
		programs.Hear(e.fd) // the answer
	}
}

// A bag holds descriptors of every kind that one can have without a device.
type bag struct{ fds []int }

// openBag also lowers the limit on open files, which bounds what a user who is
// not root has in flight: else the attackers could keep the good ones of the same
// user from sending descriptors.
func openBag() (bag, error) {
	const limit = 512
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		return bag{}, err
	}
	var b bag
	var errs error
	add := func(fd int, err error) {
		if err != nil {
			errs = errors.Join(errs, err)
			return
		}
		b.fds = append(b.fds, fd)
	}
	pair := func(fds [2]int, err error) {
		add(fds[0], err)
		add(fds[1], err)
	}
	var p [2]int
	err := unix.Pipe2(p[:], unix.O_CLOEXEC)
	pair(p, err)
	pair(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))
	add(unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0))
	add(unix.MemfdCreate("bomb", unix.MFD_CLOEXEC))
	add(unix.Eventfd(0, unix.EFD_CLOEXEC))
	add(unix.EpollCreate1(unix.EPOLL_CLOEXEC))
	for _, name := range []string{"/dev/null", "/", "/proc/self/exe"} {
		add(unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0))
	}
	if _, err := os.Stat("/dev/nvidiactl"); err == nil {
		add(unix.Open("/dev/nvidiactl", unix.O_RDONLY|unix.O_CLOEXEC, 0))
	}
	return b, errs
}

func (b bag) close() {
	for _, fd := range b.fds {
		unix.Close(fd)
	}
}
