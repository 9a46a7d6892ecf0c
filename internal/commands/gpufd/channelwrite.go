package gpufd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufd/gpufd/channel"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/share"
)

type channelWriteFlags struct {
	slots   int
	size    cli.Size
	rate    float64
	frames  uint64
	readers int
	stall   time.Duration
	drop    bool
	device  string
}

func (p *program) channelWriteCommand() *cobra.Command {
	var f channelWriteFlags
	cmd := &cobra.Command{
		Use:   "write NAME --slots N --slot-size B [--rate HZ] [--frames N]",
		Short: "Publish standard input as frames, until it ends",
		Long: `write cuts standard input into frames of --slot-size bytes, the last of which may be
shorter, and publishes each frame to the readers of the channel. It listens on --socket
itself, which nobody else may have. Before the first frame it waits for
--readers, no longer than --timeout. It ends when the input ends; readers still get what
was published.`,
		Args: p.args(1, 1, "a name"),
		RunE: func(c *cobra.Command, args []string) error { return p.channelWrite(c.Context(), args[0], f) },
	}
	fl := cmd.Flags()
	fl.IntVar(&f.slots, "slots", 4, "number of slots, each for one frame")
	fl.Var(&f.size, "slot-size", "the `bytes` of a frame, such as 4096 or 4MiB")
	fl.Float64Var(&f.rate, "rate", 0, "most frames per second; 0 is no bound")
	fl.Uint64Var(&f.frames, "frames", 0, "end after this many frames; 0 is no bound")
	fl.IntVar(&f.readers, "readers", 1, "how many readers to wait for before the first frame")
	fl.DurationVar(&f.stall, "stall", 0, "longest time that a blocking reader may keep a slot; 0 is no bound")
	fl.BoolVar(&f.drop, "drop", false, "drop a reader that keeps a slot for longer than --stall, and go on")
	fl.StringVar(&f.device, "device", "0", "the device that the frames are on, an ordinal or a UUID")
	app.DriverFlag(cmd.Flags(), &p.driver)
	return cmd
}

func (f *channelWriteFlags) check() error {
	switch {
	case f.size == 0:
		return cli.Usagef("want --slot-size, such as 4096 or 4MiB")
	case f.slots < channel.MinSlots || f.slots > channel.MaxSlots:
		return cli.Usagef("--slots %d: want %d to %d", f.slots, channel.MinSlots, channel.MaxSlots)
	case f.rate != 0 && !(f.rate >= rateLeast && f.rate <= rateMost):
		return cli.Usagef("--rate %v: want frames a second, %v to %.0f, or 0 for no bound", f.rate, rateLeast, rateMost)
	case f.stall < 0 || f.readers < 0:
		return cli.Usagef("--stall and --readers want 0 or more")
	case f.drop && f.stall == 0:
		return cli.Usagef("--drop wants --stall, after which a reader is dropped")
	case f.readers > channel.MaxReaders:
		return cli.Usagef("--readers %d: a channel has %d at most", f.readers, channel.MaxReaders)
	}
	return nil
}

func (p *program) channelWrite(ctx context.Context, name string, f channelWriteFlags) (err error) {
	if err := f.check(); err != nil {
		return err
	}
	c, err := p.context(f.device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	srv, err := cli.Listen(p.socket, func() (*share.Server, error) { return share.Listen(p.socket, &share.ListenOptions{Timeout: p.timeout}) })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, srv.Close()) }()
	stall := channel.WithStallLimit(f.stall)
	if f.drop {
		stall = channel.WithDropAfter(f.stall)
	}
	w, err := channel.NewWriter(ctx, c, srv, name, f.slots, uint64(f.size), stall, channel.OnGone(p.readerGone))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	p.tell("Channel %s: %d slots of %s at %s", name, f.slots, f.size, p.socket)
	err = interrupted(ctx, p.publish(ctx, c, w, name, f))
	s := w.Stats()
	p.told = true
	p.result = app.Fields{"name": name, "frames": s.Frames, "received": s.Given, "lost": s.Skipped, "last_whole": s.Frames, "max_stall_ms": milliseconds(s.MaxStall)}
	p.tell("Wrote %s; the longest wait for a slot was %s", cli.Count(s.Frames, "frame"), app.Brief(s.MaxStall))
	return err
}

// readerGone prints that a reader did not leave in order.
func (p *program) readerGone(g channel.Gone) {
	if g.Err != nil && !serve.IsEnded(g.Err) {
		p.tell("Reader %d is gone, after frame %d: %s", g.Lease, g.Released, cli.OneLine(g.Err))
	}
}

// publish publishes the input until it ends.
func (p *program) publish(ctx context.Context, c *cu.Context, w *channel.Writer, name string, f channelWriteFlags) error {
	if err := p.awaitReaders(ctx, w, name, f.readers); err != nil {
		return err
	}
	in, err := c.AllocHost(w.SlotSize(), 0)
	if err != nil {
		return fmt.Errorf("pinned memory for a frame: %w", err)
	}
	defer in.Close()
	frames := readFrames(ctx, os.Stdin, in.Bytes())
	pace := pace{rate: f.rate}
	for n := uint64(0); f.frames == 0 || n < f.frames; n++ {
		size, err := frames.next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = pace.wait(ctx)
		}
		if err != nil {
			return err
		}
		if err := put(ctx, c, w, in.Bytes()[:size]); err != nil {
			return err
		}
	}
	return nil
}

// awaitReaders waits until n readers have joined.
func (p *program) awaitReaders(ctx context.Context, w *channel.Writer, name string, n int) error {
	defer p.waiting(fmt.Sprintf("%s of %s", cli.Count(n, "reader"), name), p.timeout,
		fmt.Sprintf("gpufd channel read %s --socket %s starts one, and --readers 0 waits for none", name, p.socket))()
	step, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	return w.AwaitReaders(step, n)
}

// put publishes one frame.
func put(ctx context.Context, c *cu.Context, w *channel.Writer, frame []byte) error {
	s, err := w.Acquire(ctx)
	if err != nil {
		return err
	}
	if err := cu.CopyToDevice(c, s, frame); err != nil {
		return err
	}
	return w.Publish(s, channel.Meta{Size: uint64(len(frame))})
}

// A frameReader reads frames on a goroutine of its own, so that a signal is handled while
// the input is silent. The goroutine ends with the input, or the program.
type frameReader struct {
	want  chan struct{}
	sizes chan readFrame
}

type readFrame struct {
	size int
	err  error
}

// readFrames reads a frame into b each time the previous one has been taken.
func readFrames(ctx context.Context, r io.Reader, b []byte) *frameReader {
	f := &frameReader{make(chan struct{}), make(chan readFrame, 1)}
	go func() {
		own := make([]byte, len(b)) // b may be gone when a read returns
		for {
			n, err := io.ReadFull(r, own)
			if errors.Is(err, io.ErrUnexpectedEOF) {
				err = nil
			}
			select {
			case <-f.want:
			case <-ctx.Done():
				return
			}
			copy(b, own[:n])
			f.sizes <- readFrame{n, err}
			if err != nil {
				return
			}
		}
	}()
	return f
}

// next waits for the next frame and returns its length, or io.EOF at the end.
func (f *frameReader) next(ctx context.Context) (int, error) {
	select {
	case f.want <- struct{}{}:
		got := <-f.sizes
		return got.size, got.err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// A pace bounds the frames per second.
type pace struct {
	rate  float64
	begin time.Time // when frame 0 of this run of frames was due
	n     uint64    // the next frame of the run
}

// Bounds of a pace. A timer is late by a millisecond or so, and the pace makes up for that; if
// it is later, it begins anew and does not catch up.
const (
	paceSlack = 100 * time.Millisecond
	rateMost  = 1e6
	rateLeast = 1e-6
)

// wait waits for the time of the next frame.
func (p *pace) wait(ctx context.Context) error {
	if p.rate == 0 {
		return nil
	}
	due := p.begin.Add(time.Duration(float64(p.n) / p.rate * float64(time.Second)))
	if p.n == 0 || time.Since(due) > paceSlack {
		p.begin, p.n = time.Now(), 0
		due = p.begin
	}
	p.n++
	if d := time.Until(due); d > 0 {
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
	}
	return plain.ContextErr(ctx)
}
