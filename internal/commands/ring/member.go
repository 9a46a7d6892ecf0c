package ring

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// MemberArg is the first argument of a member, whose parent is this program;
// socketFD is the descriptor that it inherits.
const (
	MemberArg = "member"
	socketFD  = 3
)

// Why a member ends before it is done.
var (
	errParentLost = cli.Codef(cli.ExitPeer, "the parent is lost")
	errStopped    = errors.New("told to stop")
)

// A worker is a member, on the side of its own process.
type worker struct {
	setup
	id     int
	app    *app.App
	conn   *sock.Conn
	orders chan order
	over   context.Context // done when the parent says so, or is lost

	ctx     *cu.Context
	stream  *cu.Stream
	filler  filler
	room    *vmm.Reservation
	maps    []*vmm.Mapping
	wrong   *mismatch
	pause   time.Duration // how often the parent hears something
	told    time.Time     // when the parent last heard that something is done
	running bool          // the kernel is running, or may be
}

// An order is a message from the parent, with the descriptors that came along.
type order struct {
	message
	files []*os.File
}

// RunMember is the process of a member, and returns its exit code. It reports to the
// parent instead of printing.
func RunMember(args []string) int {
	w, err := join()
	if err != nil {
		fmt.Fprintf(os.Stderr, "ring: %s is for the processes that ring starts itself: %v\n", MemberArg, err)
		return cli.ExitUsage
	}
	defer w.conn.Close()
	w.app = app.New("ring", "is a process of a ring.", io.Discard)
	w.app.Flags.IntVar(&w.id, "id", 0, "`number` of the process")
	_, _ = w.app.Parse(args) // Run says what is wrong with them
	w.pause = pauseOf(w.app.Timeout)
	go w.beat()
	defer w.app.Waiting()() // for the parent, which ends it; also while the driver is opened
	var said bytes.Buffer
	w.app.Body = w.run
	code := w.app.Run(args, &said)
	last := end{Code: code, Wrong: w.wrong, Error: strings.TrimPrefix(strings.TrimSpace(said.String()), "ring: ")}
	if err := w.say(message{Kind: ended, End: &last}); err != nil && code != cli.ExitOK {
		fmt.Fprintf(os.Stderr, "ring: process %d: %s\n", w.id, last.Error)
	}
	return code
}

// join takes the inherited socket and listens to the parent from now on, so that the process
// ends soon after its parent, even during a call of the driver.
func join() (*worker, error) {
	// If somebody else started this process, the descriptor may be Go's own, and must
	// not be closed.
	if _, err := unix.GetsockoptInt(socketFD, unix.SOL_SOCKET, unix.SO_TYPE); err != nil {
		return nil, fmt.Errorf("%w: descriptor %d: %w", sock.ErrNotSocket, socketFD, os.NewSyscallError("getsockopt", err))
	}
	conn, err := sock.FromFile(os.NewFile(socketFD, "ring"))
	if err != nil {
		return nil, err
	}
	if err := (sock.Policy{}).Check(conn.Peer()); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	w := newWorker(conn)
	go w.endSoon()
	return w, nil
}

// endSoon ends the process some time after the parent has ended it, whatever it does then.
func (w *worker) endSoon() {
	<-w.over.Done()
	time.Sleep(grace)
	if why := context.Cause(w.over); errors.Is(why, errParentLost) { // the parent would have printed it
		fmt.Fprintf(os.Stderr, "ring: process with pid %d: %v; ended by force, because its work took over %v\n", os.Getpid(), why, grace)
	}
	os.Exit(cli.ExitPeer)
}

// newWorker makes a worker that listens to the parent, even while an order is not taken
// yet: there is one at a time.
func newWorker(conn *sock.Conn) *worker {
	over, cancel := context.WithCancelCause(context.Background())
	w := &worker{conn: conn, over: over, orders: make(chan order, 1)}
	go func() { cancel(w.listen()) }()
	return w
}

// listen passes on the parent's orders until the parent ends the work or is lost.
func (w *worker) listen() error {
	for {
		m, files, err := receive(context.Background(), w.conn)
		switch {
		case err != nil:
			return errParentLost
		case m.Kind == lost:
			return peerLost(m.Peer)
		case m.Kind == stop:
			return errStopped
		}
		w.orders <- order{m, files}
	}
}

// pauseOf returns how often the parent hears that this process lives, or has done
// something: several times within --timeout.
func pauseOf(timeout time.Duration) time.Duration {
	return min(max(timeout/10, 10*time.Millisecond), time.Second)
}

// beat tells the parent that this process lives, even during a call of the driver, until
// the parent ends the work.
func (w *worker) beat() {
	tick := time.NewTicker(w.pause)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			_ = w.conn.TrySend(encode(message{Kind: living})) // a full queue tells the parent the same
		case <-w.over.Done():
			return
		}
	}
}

// say sends the parent a message. There is room for it, unless the parent was stopped for
// long. If the parent has gone, listen knows why, or soon will.
func (w *worker) say(m message) error {
	err := w.conn.TrySend(encode(m))
	if errors.Is(err, sock.ErrWouldWait) {
		err = w.conn.Send(w.over, encode(m))
	}
	if errors.Is(err, sock.ErrPeerLost) {
		<-w.over.Done()
		return context.Cause(w.over)
	}
	return err
}

func (w *worker) run(ctx context.Context) (err error) {
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP) // the terminal sends them to the parent, too
	signal.Reset(syscall.SIGTERM)                 // it kills a member, and the ring reports that
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(w.over, func() { cancel(context.Cause(w.over)) })()
	if err = w.sayWorking(); err == nil { // the driver is open
		err = w.work(ctx)
	}
	if err != nil && w.wrong == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if w.running {
		return err // freeing its memory would wait for it; the end of the process frees it
	}
	return errors.Join(err, w.close())
}

// work carries out all orders, from the first to the last.
func (w *worker) work(ctx context.Context) error {
	if err := w.await(ctx, begin, w.prepare); err != nil {
		return err
	}
	for i := range w.Steps {
		err := w.await(ctx, fillStep, func(o order) error {
			if err := w.fill(ctx, i); err != nil {
				return err
			}
			return w.say(message{Kind: filled, Step: i})
		})
		if err != nil {
			return err
		}
	}
	return w.await(ctx, checkChunk, func(order) error { return w.check(ctx) })
}

// await waits for an order, and carries it out.
func (w *worker) await(ctx context.Context, want kind, do func(order) error) error {
	select {
	case o := <-w.orders:
		defer sock.CloseFiles(o.files)
		if o.Kind != want {
			return fmt.Errorf("the parent says %q, want %q", o.Kind, want)
		}
		return do(o)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// prepare loads the kernel and maps the chunks.
func (w *worker) prepare(o order) error {
	if o.Setup == nil || len(o.files) != o.Setup.procs() {
		return fmt.Errorf("the parent sent %d descriptors, want one of each chunk", len(o.files))
	}
	w.setup = *o.Setup
	dev, err := w.app.Driver.FindDevice(w.Device)
	if err != nil {
		return err
	}
	if w.ctx, err = dev.PrimaryContext(); err != nil {
		return err
	}
	if w.stream, err = w.ctx.NewStream(); err != nil {
		return err
	}
	if err := w.sayWorking(); err != nil {
		return err
	}
	if w.filler, err = loadFiller(w.ctx, w.Module); err != nil {
		return err
	}
	if w.room, err = vmm.Reserve(w.app.Driver, uint64(w.procs())*w.Chunk); err != nil {
		return err
	}
	for i, f := range o.files {
		if err := w.mapChunk(dev, i, f); err != nil {
			return fmt.Errorf("chunk %d: %w", i, err)
		}
		if err := w.sayWorking(); err != nil {
			return err
		}
	}
	return w.say(message{Kind: ready})
}

// mapChunk imports a chunk and maps it behind the earlier ones. The mapping keeps the
// memory.
func (w *worker) mapChunk(dev *cu.Device, i int, f *os.File) (err error) {
	owner, err := w.app.Driver.FindDevice(w.Owners[i])
	if err != nil {
		return err
	}
	a, err := vmm.ImportAllocation(owner, f, w.Chunk)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	m, err := w.room.Map(uint64(i)*w.Chunk, a)
	if err != nil {
		return err
	}
	w.maps = append(w.maps, m)
	return m.SetAccess(cu.ReadWrite, dev)
}

func (w *worker) chunkAt(i int) cu.DevicePtr { return w.room.Ptr().Add(uint64(i) * w.Chunk) }

// fill does one step.
func (w *worker) fill(ctx context.Context, step int) error {
	w.running = true
	err := w.filler.fill(ctx, w.stream, w.chunkAt(chunkOf(w.id, step, w.procs())), w.Size, w.Values[w.id], w.sayWorking)
	w.running = err != nil && !errors.Is(err, cu.ErrContextLost)
	if err != nil {
		return fmt.Errorf("step %d: %w", step, err)
	}
	return nil
}

// check checks the process's own chunk, on the host.
func (w *worker) check(ctx context.Context) error {
	want := w.Values[fillerOf(w.id, w.Steps-1, w.procs())]
	err := checkOnHost(ctx, w.stream, w.chunkAt(w.id), w.Size, want, w.sayWorking)
	errors.As(err, &w.wrong)
	return err
}

// sayWorking tells the parent now and then that something is done, which puts off
// the time to give up.
func (w *worker) sayWorking() error {
	if time.Since(w.told) < w.pause {
		return nil
	}
	w.told = time.Now()
	return w.say(message{Kind: working})
}

func (w *worker) close() error {
	errs := []error{w.ctx.Close()}
	for _, m := range slices.Backward(w.maps) {
		errs = append(errs, m.Close())
	}
	return errors.Join(append(errs, w.room.Close())...)
}
