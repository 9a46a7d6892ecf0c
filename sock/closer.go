package sock

import (
	"os"
	"runtime"
	"sync"
	"weak"

	"golang.org/x/sys/unix"
)

// A closer closes what peers sent, each batch on a goroutine of its own. A batch that
// hangs holds a thread, so the number of batches at once is bounded for each process, for
// each user and in all. Further batches of that sender wait in a queue; batches of other
// senders do not wait for them.
type closer struct {
	most quota

	mu    sync.Mutex
	busy  map[sender]int      // closes under way, for each process, for each user and in all
	lines map[sender][]func() // closes that wait; none of them could begin
}

// quota bounds how many closes are under way at once.
type quota struct{ process, user, all int }

// closes closes received files, and connections that were not refused.
var closes = closer{most: quota{process: 16, user: 256, all: 4096}}

// newRefusals returns a closer for a Listener's refused connections. All processes of one
// user count as one.
func newRefusals() closer { return closer{most: quota{process: 16, user: 16, all: 256}} }

// sender is a process, or all processes of a user, or everybody.
type sender struct{ uid, pid int64 }

const allOf = -1 // in place of a number

// ourselves stands for this process, for files that came from no peer.
var ourselves = sender{uid: -2, pid: -2}

func (p Peer) sender() sender { return sender{int64(p.UID), int64(p.PID)} }

// user returns the group of all processes of a user.
func (s sender) user() sender { return sender{s.uid, allOf} }

// anyProcess returns one sender for all processes of a user.
func (s sender) anyProcess() sender { return sender{s.uid, 0} }

// close calls do soon: at once, or, after it has called inLine, when s has room again.
func (c *closer) close(s sender, do, inLine func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.room(s) {
		inLine()
		c.init()
		c.lines[s] = append(c.lines[s], do)
		return
	}
	c.count(s, 1)
	go c.work(s, do)
}

// work runs closes until none is waiting that may begin.
func (c *closer) work(s sender, do func()) {
	for do != nil {
		do()
		s, do = c.next(s)
	}
}

// next records that a close for done has ended, and returns a waiting one that may begin, if any.
func (c *closer) next(done sender) (sender, func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count(done, -1)
	for s, line := range c.lines { // in any order, so that nobody always comes last
		if !c.room(s) {
			continue
		}
		c.count(s, 1)
		if c.lines[s] = line[1:]; len(line) == 1 {
			delete(c.lines, s)
		}
		return s, line[0]
	}
	return done, nil
}

func (c *closer) room(s sender) bool {
	return c.busy[s] < c.most.process && c.busy[s.user()] < c.most.user && c.busy[sender{allOf, allOf}] < c.most.all
}

func (c *closer) count(s sender, n int) {
	c.init()
	for _, group := range []sender{s, s.user(), {allOf, allOf}} {
		if c.busy[group] += n; c.busy[group] == 0 {
			delete(c.busy, group)
		}
	}
}

func (c *closer) init() {
	if c.busy == nil {
		c.busy, c.lines = map[sender]int{}, map[sender][]func(){}
	}
}

// senders maps received files that are still in use to their senders: weak.Pointer[os.File] → sender.
var senders sync.Map

// sent records s as the sender of f, for as long as f is in use.
func (s sender) sent(f *os.File) {
	if s == ourselves {
		return
	}
	key := any(weak.Make(f))
	senders.Store(key, s)
	runtime.AddCleanup(f, senders.Delete, key)
}

// senderOf returns the sender of f, or ourselves.
func senderOf(f *os.File) sender {
	if s, ok := senders.Load(weak.Make(f)); ok {
		return s.(sender)
	}
	return ourselves
}

// maxClosing returns how many connections of one Listener may be closing, with those that
// wait in line. It leaves half of the descriptors that may be open free.
func maxClosing() int {
	const most = 4096
	var open unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &open); err != nil {
		return most
	}
	return int(min(most, max(open.Cur/2, 1)))
}
