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
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
)

type channelReadFlags struct {
	policy string
	join   string
	output string
	device string
}

func (p *program) channelReadCommand() *cobra.Command {
	var f channelReadFlags
	cmd := &cobra.Command{
		Use:   "read NAME [--policy block|drop-oldest|drop-newest|latest] [-o FILE]",
		Short: "Write a channel's frames to standard output, or a file",
		Long: `read waits for the channel's writer, no longer than --timeout, and writes the bytes of
each frame, one after the other. --policy says what happens when it is too slow: with block
the writer waits; with drop-oldest it goes on with the newest frame; with drop-newest it
gets no new frames while it has too many; with latest it always takes the newest frame, which
nobody overwrites meanwhile. It exits with 0 when the writer ends, with 1 when
no writer comes, and with 4 when the writer is lost or has dropped this reader.`,
		Args: p.args(1, 1, "a name"),
		RunE: func(c *cobra.Command, args []string) error { return p.channelRead(c.Context(), args[0], f) },
	}
	fl := cmd.Flags()
	app.Choice(fl, &f.policy, "policy", "block", "what happens when this reader is too slow: block, drop-oldest, drop-newest or latest", "block", "drop-oldest", "drop-newest", "latest")
	app.Choice(fl, &f.join, "join", "next", "the first frame to read: next, the next one to be published, or newest, the last one so far", "next", "newest")
	fl.StringVarP(&f.output, "output", "o", "", "the `file` to write; the default is standard output")
	fl.StringVar(&f.device, "device", "0", "the device that reads, an ordinal or a UUID: that of the frames, or one with peer access to it")
	app.DriverFlag(cmd.Flags(), &p.driver)
	return cmd
}

func (p *program) channelRead(ctx context.Context, name string, f channelReadFlags) (err error) {
	if f.output == "" {
		if p.json {
			return cli.Usagef("--json wants -o FILE, because the frames go to standard output otherwise")
		}
		return p.readTo(ctx, p.out, name, f)
	}
	if _, err := app.OutputPath(f.output); err != nil {
		return err
	}
	file, err := os.OpenFile(f.output, os.O_WRONLY|os.O_CREATE, 0o666) // emptied once there is a writer
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return p.readTo(ctx, file, name, f)
}

// empty empties a file, and nothing else.
func empty(out io.Writer) error {
	file, ok := out.(*os.File)
	if !ok {
		return nil
	}
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return err
	}
	return file.Truncate(0)
}

// readTo joins the channel and writes its frames to out.
func (p *program) readTo(ctx context.Context, out io.Writer, name string, f channelReadFlags) (err error) {
	c, err := p.context(f.device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	r, err := p.openChannel(ctx, c, name, f)
	if err != nil {
		return interrupted(ctx, err)
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if err := empty(out); err != nil {
		return err
	}
	last, err := p.copyFrames(ctx, c, r, out)
	s := r.Stats()
	var lost *channel.WriterLostError
	if errors.As(err, &lost) {
		last = lost.Last
	}
	p.told = true
	p.result = app.Fields{"name": name, "frames": s.Received + s.Lost, "received": s.Received - s.Passed, "lost": s.Lost + s.Passed,
		"last_whole": last, "max_stall_ms": milliseconds(s.MaxStall)}
	p.tell("Read %s, %d lost; the longest wait for one was %s", cli.Count(s.Received-s.Passed, "frame"), s.Lost+s.Passed, app.Brief(s.MaxStall))
	return channelEnd(ctx, err)
}

// channelEnd returns nil if the writer has ended or a signal came.
func channelEnd(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, channel.ErrEnded):
		return nil
	case errors.Is(err, channel.ErrLost), errors.Is(err, channel.ErrDropped):
		return cli.Codef(cli.ExitPeer, "%w", err)
	}
	return interrupted(ctx, err)
}

// readPause is how long openChannel waits before it tries again.
const readPause = 20 * time.Millisecond

// openChannel joins the channel as soon as there is one, no later than --timeout.
func (p *program) openChannel(ctx context.Context, c *cu.Context, name string, f channelReadFlags) (*channel.Reader, error) {
	policy, err := channel.ParsePolicy(f.policy)
	if err != nil {
		return nil, err
	}
	join := map[string]channel.Join{"next": channel.Next, "newest": channel.Newest}[f.join]
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	defer p.waiting("a writer of "+name, p.timeout, fmt.Sprintf("gpufd channel write %s --slot-size B --socket %s starts one", name, p.socket))()
	for {
		r, err := channel.Open(ctx, p.socket, name, c, channel.WithPolicy(policy), channel.WithJoin(join))
		if err == nil || !mayCome(err) && ctx.Err() == nil {
			return r, err
		}
		select {
		case <-time.After(readPause):
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return nil, context.Cause(ctx)
			}
			return nil, cli.Codef(cli.ExitFailed, "no writer of %s at %s within %s: %w", name, p.socket, p.timeout, err)
		}
	}
}

// mayCome reports whether a writer may come yet.
func mayCome(err error) bool {
	return errors.Is(err, share.ErrNotFound) || errors.Is(err, sock.ErrNoListener)
}

// copyFrames writes frames until there are no more, and returns the number of the last.
func (p *program) copyFrames(ctx context.Context, c *cu.Context, r *channel.Reader, out io.Writer) (last uint64, err error) {
	buf, err := c.AllocHost(r.SlotSize(), 0)
	if err != nil {
		return 0, fmt.Errorf("pinned memory for a frame: %w", err)
	}
	defer buf.Close()
	w := newAsideWriter(out)
	defer w.end()
	for {
		f, err := r.Next(ctx)
		if err != nil {
			return last, err
		}
		b := buf.Bytes()[:f.Size()]
		if err := cu.CopyToHost(c, b, &f); err != nil {
			return last, err
		}
		switch err := r.Release(f); {
		case errors.Is(err, channel.ErrPassed):
			continue // the copy may mix two frames
		case err != nil:
			return last, err
		}
		if err := w.write(ctx, b); err != nil {
			return last, fmt.Errorf("writing frame %d: %w", f.Sequence, err)
		}
		last = f.Sequence
	}
}
