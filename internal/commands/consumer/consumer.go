// Package consumer is the command consumer.
package consumer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/internal/pattern"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
)

// A consumer is one run of the command.
type consumer struct {
	app *app.App

	device string
	access string // ro or rw
	socket string
	allow  app.PolicyFlags
	way    string   // gpu, cpu or neither
	most   cli.Size // 0: any size

	salt    uint32 // to check against, if --expect-salt is given
	noVMM   error  // why only legacy memory can be taken, or nil
	dev     *cu.Device
	ctx     *cu.Context
	kernels *cli.Kernels
	att     *share.Attachment
	started time.Time
	over    func()                 // ends the wait for the producer
	filled  atomic.Pointer[string] // how much of the memory the producer has filled, once it says so
}

// New returns a run of the command.
func New(stdout io.Writer) *app.App {
	c := &consumer{}
	c.app = app.New("consumer", "attaches to the memory that a producer offers, and verifies it.", stdout)
	c.app.Body = c.run
	f := c.app.Flags
	f.StringVar(&c.device, "device", "", "device that the memory must be on, by `N|UUID`; the default is any device")
	app.Choice(f, &c.access, "access", "ro", "map the memory `ro|rw`; rw needs a producer with --access rw, and legacy memory is always rw", "ro", "rw")
	f.Uint32Var(&c.salt, "expect-salt", 0, "check against this 32-bit `number` instead of the offer's salt")
	app.Choice(f, &c.way, "verify", "", "compare the data on the `gpu|cpu`; the default is the GPU if its driver can load the kernels, and the CPU with the software driver", "gpu", "cpu")
	f.StringVar(&c.socket, "socket", cli.DefaultSocket(), "`path` of the producer's socket")
	f.Var(&c.most, "max-size", "refuse offers of more than this many `bytes`, with units KiB, MiB, GiB; the default is any size")
	c.app.AllowFlags(&c.allow,
		"also take offers of users `U[,U...]`, by number or name",
		"also take offers of users whose effective group is one of `G[,G...]`, by number or name")
	return c.app
}

func (c *consumer) run(ctx context.Context) (err error) {
	c.app.Say("start", app.Fields{"program": "consumer"}, "=== CUDA VMM Consumer ===")
	defer func() {
		err = c.app.Cleanup(err, c.kernels.Close, c.att.Close, c.ctx.Close)
	}()
	if err := c.open(); err != nil {
		return err
	}
	if err := c.attach(ctx); err != nil {
		return err
	}
	return c.verifyAndReport(ctx)
}

// open readies a device before it connects, so that the producer need not wait: a first
// context takes a few hundred milliseconds.
func (c *consumer) open() (err error) {
	name := c.device
	if name == "" {
		name = "0"
	}
	if c.dev, err = c.app.Device(name); err != nil {
		return err
	}
	if c.noVMM = cli.NeedVMM(c.dev); c.noVMM != nil && cli.NeedIPC(c.dev) != nil {
		return c.noVMM
	}
	return c.enter()
}

// enter takes the primary context of the device in use, and loads the kernels that verify.
func (c *consumer) enter() (err error) {
	c.ctx, c.kernels, err = c.app.Enter(c.dev, "verify", c.way)
	return err
}

func (c *consumer) attach(ctx context.Context) (err error) {
	opts := &share.AttachOptions{
		Access: app.Access(c.access), Timeout: c.app.Timeout, Policy: c.allow.Policy(), MaxSize: uint64(c.most), AnyDevice: c.device == "", Legacy: true, LegacyOnly: c.noVMM != nil,
		OnConnected: c.connected, OnReceived: c.received, OnProgress: c.heard,
	}
	c.app.Say("connecting", app.Fields{"socket": c.socket}, "Connecting to producer...")
	c.app.Note("  at %s", c.socket)
	c.started, c.over = time.Now(), c.waiting(func() string { return "waiting for a producer" })
	defer func() { c.over() }()
	err = c.app.Timed("attach", func() (err error) {
		c.att, err = c.find(ctx, opts)
		return err
	})
	switch {
	case c.noVMM != nil && errors.Is(err, share.ErrHandle):
		return errors.Join(c.noVMM, err)
	case err != nil:
		return err
	}
	c.sayAttached()
	c.sayAccess()
	return c.follow()
}

// waiting says that this side waits for the producer, until over is called.
func (c *consumer) waiting(what func() string) (over func()) {
	waited, shown := c.app.Waiting(), c.app.Busy(what)
	return func() {
		shown()
		waited()
	}
}

// waitingForData waits for the producer's data. It shows how much of it is there, or what
// until the producer has told.
func (c *consumer) waitingForData(what string) {
	c.over()
	c.over = c.waiting(func() string {
		if filled := c.filled.Load(); filled != nil {
			return "waiting for the producer, which has filled " + *filled
		}
		return what
	})
}

// heard notes how far the producer is.
func (c *consumer) heard(done, total uint64) {
	filled := cli.PartOf(done, total)
	c.filled.Store(&filled)
}

// How often the consumer looks for a producer that is not there yet.
const (
	soonest = 5 * time.Millisecond
	latest  = 100 * time.Millisecond
)

// find attaches to the producer once it is there. --timeout bounds the wait for it, and
// each step after that.
func (c *consumer) find(ctx context.Context, opts *share.AttachOptions) (*share.Attachment, error) {
	late := time.NewTimer(c.app.Timeout)
	defer late.Stop()
	for pause := soonest; ; pause = min(2*pause, latest) {
		att, err := share.Attach(ctx, c.socket, cli.OfferName, c.dev, opts)
		if !errors.Is(err, sock.ErrNoListener) || errors.Is(err, syscall.ENOTDIR) {
			return att, err
		}
		if pause == soonest {
			c.app.Say("waiting", app.Fields{"socket": c.socket, "longest_us": c.app.Timeout.Microseconds()},
				"  %s: waiting for one, for %s at most", c.missing(), c.app.Timeout)
		}
		select {
		case <-time.After(pause):
		case <-late.C:
			return nil, fmt.Errorf("no producer there within %s: %w", c.app.Timeout, err)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// missing says what is not there: the producer, or even the directory of a --socket.
func (c *consumer) missing() string {
	dir := filepath.Dir(c.socket)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) && c.socket != cli.DefaultSocket() {
		return "there is no directory " + dir + ", so no producer can be there yet"
	}
	return "no producer is there yet"
}

func (c *consumer) connected(p sock.Peer) {
	c.waitingForData("waiting for the producer, which may still be filling its memory")
	c.app.Step("connect", time.Since(c.started))
	c.app.Say("connected", app.Fields{"uid": p.UID, "pid": p.PID}, "Connected to producer")
	c.app.Say("peer", app.Fields{"uid": p.UID, "pid": p.PID}, "  the producer is %s", p)
}

// sayAttached prints what the driver did with the offer.
func (c *consumer) sayAttached() {
	if buf := c.att.Buffer(); buf != nil {
		c.app.SayImported(buf)
		return
	}
	o := c.att.Offer()
	c.app.SayOpened(c.att.Ptr()-cu.DevicePtr(o.Legacy.Offset), o.Descriptor.ChunkSize)
}

// sayAccess says so if the memory can be written although that was not asked for.
func (c *consumer) sayAccess() {
	if have := c.att.Access(); have != app.Access(c.access) {
		c.app.Say("access", app.Fields{"access": have.String()}, "  it is %s here, although %s was asked for: legacy memory has no access rights", have, app.Access(c.access))
	}
}

// received prints what has come. Then the consumer waits for the producer, whose data may not be
// there yet.
func (c *consumer) received(o share.OfferInfo, files []*os.File) {
	c.over()
	defer c.waitingForData("waiting for the producer's data")
	c.app.Step("receive", time.Since(c.started))
	d := o.Descriptor
	c.app.Result["size"], c.app.Result["aligned"], c.app.Result["handle"] = d.Size, uint64(d.Chunks)*d.ChunkSize, "vmm"
	if o.Legacy != nil {
		c.app.Result["handle"] = "legacy"
		c.app.Say("received", app.Fields{"handle": "legacy", "offset": o.Legacy.Offset, "size": d.Size, "allocation": d.ChunkSize},
			"Received IPC handle: %d bytes, size: %d bytes", len(o.Legacy.Handle), d.Size)
		return
	}
	c.app.Say("received", app.Fields{"fd": files[0].Fd(), "fds": len(files), "size": d.Size, "chunk": d.ChunkSize},
		"Received FD: %s, size: %d bytes", app.FDs(files), d.Size)
}

// follow switches to the device that the memory is on.
func (c *consumer) follow() error {
	dev := c.att.Device()
	if dev == c.dev {
		return nil
	}
	err := errors.Join(c.kernels.Close(), c.ctx.Close())
	c.dev = dev
	c.app.UseDevice(dev)
	return errors.Join(err, c.enter())
}

// verifyAndReport verifies the memory and tells the producer the verdict, if it is still
// there.
func (c *consumer) verifyAndReport(ctx context.Context) error {
	v := verifier{consumer: c, size: c.att.Size()}
	fault := c.app.Timed("verify", func() error { return v.verify(ctx) })
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if c.isTakenBack() {
		return c.att.Err()
	}
	err := c.att.Err()
	if err == nil {
		err = c.app.Timed("report", func() error { return c.report(ctx, fault) })
	}
	if err == nil {
		c.app.Say("acknowledged", app.Fields{"ok": fault == nil}, "Sent acknowledgment to producer")
	}
	return errors.Join(fault, err)
}

// report waits for the producer to read the verdict, with its own bounds.
func (c *consumer) report(ctx context.Context, fault error) error {
	defer c.waiting(func() string { return "waiting for the producer to read the verdict" })()
	return c.att.Report(ctx, fault)
}

// isTakenBack reports whether the producer waits for this side to close the memory, and
// will free it in any case.
func (c *consumer) isTakenBack() bool {
	return c.att.Offer().Legacy != nil && serve.IsEnded(c.att.Err())
}

// meta returns what the producer says of its data, with the salt to check against.
func (c *consumer) meta() (pattern.Meta, error) {
	m, err := pattern.DecodeMeta(c.att.Offer().Data, c.att.Size())
	if c.app.Flags.Changed("expect-salt") {
		m.Salt = c.salt
	}
	return m, err
}
