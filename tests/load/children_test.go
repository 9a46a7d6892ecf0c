package load

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/pattern"
	"github.com/gpufd/gpufd/internal/testenv"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/vmm"
)

// Actors are children that play a part for as long as a test wants, or until
// they are killed: their modes and main functions.
var roles = map[string]func(task) error{
	actProducer:      serve,
	actConsumer:      consumeForEver,
	actDyingConsumer: consumeAndDie,
	actDyingProducer: produceAndDie,
	actAttacker:      attack,
	actMany:          attachAndHold,
	actFollower:      follow,
	actSuccessor:     succeedProducer,
	actChecker:       checkOwner,
	actWriter:        writeForEver,
	actJudge:         judgeWriters,
}

const (
	actProducer      = "producer"       // offer a buffer
	actConsumer      = "consumer"       // attach, verify and leave, over and over
	actDyingConsumer = "dying consumer" // the same, and be killed
	actDyingProducer = "dying producer" // offer a buffer, and be killed
	actAttacker      = "attacker"       // do evil
	actMany          = "many consumers" // attach many times at once
	actFollower      = "follower"       // attach, and again when there is something newer
	actSuccessor     = "successor"      // take a producer's place, and give it to the next
	actWriter        = "writer"         // attach, and write without end
	actJudge         = "judge"          // offer memory, and see how long it is written
	actChecker       = "checker"        // attach, verify whose memory it is and leave, over and over
)

func TestMain(m *testing.M) {
	children := cutest.Children{}
	for role, act := range roles {
		children[role] = func() error {
			var do task
			if err := json.Unmarshal([]byte(os.Args[1]), &do); err != nil {
				return err
			}
			return act(do)
		}
	}
	programs.Main(m, children)
}

// A task says what a child does; each child documents the fields that it uses.
type task struct {
	Socket  string
	What    string        `json:",omitempty"`
	Count   int           `json:",omitempty"`
	After   time.Duration `json:",omitempty"`
	Timeout time.Duration `json:",omitempty"` // for a step of a conversation
	Salt    uint32        `json:",omitempty"` // of the data
	Lenient bool          `json:",omitempty"` // take it that a producer dies
}

// child starts the child process of a role.
func child(s *programs.Scene, role string, do task) *programs.Process {
	s.T.Helper()
	return childBehind(s, nil, role, do)
}

// childBehind is child with another program in front, if there is one.
func childBehind(s *programs.Scene, front []string, role string, do task) *programs.Process {
	s.T.Helper()
	if do.Socket == "" {
		do.Socket = s.Socket
	}
	b, err := json.Marshal(do)
	if err != nil {
		s.T.Fatal(err)
	}
	return s.Child(front, role, nil, string(b))
}

// The orders that a child takes, a line each. To the last three it answers with
// a line that begins with the same word. The end of its input ends it.
const (
	orderGo    = "go"
	orderHalt  = "halt"
	orderUsage = "usage"
)

// obey takes orders until there are no more. work goes on from go to halt; when it
// fails, so does the child. The counts are told with the usage.
func obey(work func(context.Context) error, counts func() map[string]int) error {
	failed := make(chan error, 1)
	halt := func() {}
	defer func() { halt() }()
	orders := readOrders()
	for {
		select {
		case err := <-failed:
			return err
		case order, more := <-orders:
			switch {
			case !more:
				return nil
			case order == orderGo:
				halt = background(work, failed)
			case order == orderHalt:
				halt()
				halt = func() {}
				fmt.Println(orderHalt)
			case order == orderUsage:
				reportUsage(counts)
			}
		}
	}
}

// readOrders waits with the poller: while a goroutine waits in a read that blocks,
// a collection that began just before it never gets to stop the world (Go 1.26).
func readOrders() <-chan string {
	orders := make(chan string)
	_ = unix.SetNonblock(0, true) // where it fails, it only blocks
	in := bufio.NewScanner(os.NewFile(0, "orders"))
	go func() {
		defer close(orders)
		for in.Scan() {
			orders <- in.Text()
		}
	}()
	return orders
}

// background runs work until halt is called, which waits for its end.
func background(work func(context.Context) error, failed chan<- error) (halt func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := testenv.Complaint(func() error { return work(ctx) }); err != nil {
			failed <- err
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// An inner is what only a child itself can count.
type inner struct {
	Goroutines int
	Counts     map[string]int
}

func reportUsage(counts func() map[string]int) {
	debug.FreeOSMemory()
	b, _ := json.Marshal(inner{runtime.NumGoroutine(), counts()}) // there is nothing that could not be
	fmt.Println(orderUsage, string(b))
}

// A tally counts by name.
type tally struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *tally) add(name string, n int) (now int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[name] += n
	return c.n[name]
}

// most keeps the largest n.
func (c *tally) most(name string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[name] = max(c.n[name], n)
}

func (c *tally) all() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.n)
}

// A stage is a child's device, with a context.
type stage struct {
	dev  *cu.Device
	ctx  *cu.Context
	host []byte // what look compares
}

func openStage() (*stage, error) { return openStageOn(0) }

func openStageOn(device int) (*stage, error) {
	drv, err := cutest.Open()
	if err != nil {
		return nil, err
	}
	dev, err := drv.Device(device)
	if err != nil {
		return nil, err
	}
	ctx, err := dev.PrimaryContext()
	return &stage{dev: dev, ctx: ctx}, err
}

func (st *stage) close() error { return st.ctx.Close() }

// offerSize is how much roles offer: two chunks, not all of the last.
const offerSize = 3 * programs.MiB

// newBuffer makes what a child offers, not filled.
func (st *stage) newBuffer() (*vmm.Buffer, error) {
	return vmm.New(st.dev, offerSize, vmm.WithChunkSize(2*programs.MiB))
}

// fill writes the first n bytes of the pattern.
func (st *stage) fill(buf *vmm.Buffer, n uint64, salt uint32) error {
	b := make([]byte, n)
	pattern.Fill(b, 0, salt)
	return cu.CopyToDevice(st.ctx, buf.Ptr(), b)
}

// look verifies what was attached to.
func (st *stage) look(att *share.Attachment) error {
	size := att.Buffer().Size()
	meta, err := pattern.DecodeMeta(att.Offer().Data, size)
	if err != nil {
		return err
	}
	if uint64(len(st.host)) != size {
		st.host = make([]byte, size)
	}
	if err := cu.CopyToHost(st.ctx, st.host, att.Buffer().Ptr()); err != nil {
		return err
	}
	if wrong := pattern.Check(st.host, 0, meta.Salt); wrong.Wrong > 0 {
		return &wrong
	}
	return nil
}

// handOver attaches, verifies, reports and leaves.
func (st *stage) handOver(ctx context.Context, socket string) error {
	att, err := share.Attach(ctx, socket, cli.OfferName, st.dev, nil)
	if err != nil {
		return err
	}
	fault := st.look(att)
	err = att.Report(ctx, fault)
	return errors.Join(fault, err, att.Close())
}

// die is SIGKILL.
func die() {
	_ = unix.Kill(unix.Getpid(), unix.SIGKILL)
	select {}
}

// word is the first word of a line, and the rest.
func word(line string) (first, rest string) {
	first, rest, _ = strings.Cut(line, " ")
	return first, rest
}
