package main

import (
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/pattern"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// A consumer is one run of the command.
type consumer struct {
	app *cli.App

	device string
	access cli.AccessFlag
	expect string
	socket string
	allow  cli.PolicyFlags
	way    cli.WayFlag
	most   cli.Size // 0: whatever comes

	salt    uint32 // to check against, if expect says so
	noVMM   error  // why only legacy memory can be taken
	dev     *cu.Device
	ctx     *cu.Context
	kernels *cli.Kernels
	att     *share.Attachment
	started time.Time
	over    func() // ends the wait for the producer
}

func newConsumer(stdout io.Writer) *consumer {
	c := &consumer{access: cli.AccessFlag(cu.ReadOnly)}
	c.app = cli.New("consumer", "attaches to the memory that a producer offers, and verifies it.", stdout)
	c.app.Check = c.check
	f := c.app.Flags
	f.StringVar(&c.device, "device", "", "device that the memory has to be on, by `N|UUID`; without it, whichever it is on")
	f.Var(&c.access, "access", "map the memory `ro|rw`; rw takes a producer with --access rw, and legacy memory is rw always")
	f.StringVar(&c.expect, "expect-salt", "", "check against this 32-bit `number` instead of the offer's salt")
	f.Var(&c.way, "verify", "compare the data on the `gpu|cpu`; without it, on the GPU if its driver takes the kernels, and on the CPU with the software driver")
	f.StringVar(&c.socket, "socket", cli.DefaultSocket(), "`path` of the producer's socket")
	f.Var(&c.most, "max-size", "take an offer of at most so many `bytes`, with units KiB, MiB, GiB; without it, of any size")
	c.app.AllowFlags(&c.allow,
		"also take offers of users `U[,U…]`, by number or name",
		"also take offers of users whose effective group is one of `G[,G…]`, by number or name")
	return c
}

func (c *consumer) run(ctx context.Context) (err error) {
	c.app.Say("start", cli.Fields{"program": "consumer"}, "=== CUDA VMM Consumer ===")
	defer func() {
		err = errors.Join(err, c.app.Cleanup(c.kernels.Close, c.att.Close, c.ctx.Close))
	}()
	if err := c.open(); err != nil {
		return err
	}
	if err := c.attach(ctx); err != nil {
		return err
	}
	return c.verifyAndReport(ctx)
}

// check holds what flag parsing cannot.
func (c *consumer) check() error {
	if c.expect == "" {
		return nil
	}
	salt, err := strconv.ParseUint(c.expect, 0, 32)
	if err != nil {
		return cli.Usagef("--expect-salt %q: want a number of at most 32 bits", c.expect)
	}
	c.salt = uint32(salt)
	return nil
}

// open readies a device before the producer is kept waiting: a first context
// takes a few hundred milliseconds.
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

// enter takes the primary context of the device in use, and loads what verifies
// there.
func (c *consumer) enter() error {
	err := c.app.Timed("context", func() (err error) {
		c.ctx, err = c.dev.PrimaryContext()
		return err
	})
	if err != nil {
		return err
	}
	c.kernels, err = c.app.Kernels(c.ctx, "verify", c.way)
	return err
}

func (c *consumer) attach(ctx context.Context) (err error) {
	opts := []share.AttachOption{
		share.WithAccess(cu.Access(c.access)), share.WithTimeout(c.app.Timeout), share.WithPolicy(c.allow.Policy()),
		share.OnConnected(c.connected), share.OnReceived(c.received), share.OnStep(c.step()),
	}
	if c.most != 0 {
		opts = append(opts, share.WithMaxSize(uint64(c.most)))
	}
	if c.device == "" {
		opts = append(opts, share.WithAnyDevice())
	}
	handles := []share.HandleType{share.HandleLegacy}
	if c.noVMM == nil {
		handles = append(handles, share.HandleFD)
	}
	opts = append(opts, share.WithHandle(handles...))
	c.app.Say("connecting", cli.Fields{"socket": c.socket}, "Connecting to producer...")
	c.started, c.over = time.Now(), c.app.Waiting()
	defer func() { c.over() }()
	err = c.app.Timed("attach", func() (err error) {
		c.att, err = share.Attach(ctx, c.socket, cli.OfferName, c.dev, opts...)
		return err
	})
	switch {
	case c.noVMM != nil && errors.Is(err, share.ErrHandle):
		return errors.Join(c.noVMM, err)
	case err != nil:
		return err
	}
	c.sayAccess()
	return c.follow()
}

func (c *consumer) connected(p sock.Peer) {
	c.app.Step("connect", time.Since(c.started))
	c.app.Say("connected", cli.Fields{"uid": p.UID, "pid": p.PID}, "Connected to producer")
	c.app.Say("peer", cli.Fields{"uid": p.UID, "pid": p.PID}, "  the producer is %s", p)
}

// step prints and times what the driver does with the offer. The last step is followed
// by a wait for the producer, whose data may not be there yet.
func (c *consumer) step() func(vmm.Step) {
	say := c.app.Steps(cli.Words("imported"))
	return func(s vmm.Step) {
		say(s)
		if s.Op == vmm.OpAccess || s.Op == vmm.OpOpen {
			c.over()
			c.over = c.app.Waiting()
		}
	}
}

// sayAccess says where the memory can be written although that was not asked for.
func (c *consumer) sayAccess() {
	if have := c.att.Access(); have != cu.Access(c.access) {
		c.app.Say("access", cli.Fields{"access": have.String()}, "  it is %s here, although %s was asked for: legacy memory has no rights", have, cu.Access(c.access))
	}
}

func (c *consumer) received(o share.Offer, files []*os.File) {
	c.over()
	c.app.Step("receive", time.Since(c.started))
	d := o.Descriptor
	c.app.Result["size"], c.app.Result["aligned"], c.app.Result["handle"] = d.Size, uint64(d.Chunks)*d.ChunkSize, o.Handle().String()
	if o.Legacy != nil {
		c.app.Say("received", cli.Fields{"handle": o.Handle().String(), "offset": o.Legacy.Offset, "size": d.Size, "allocation": d.ChunkSize},
			"Received IPC handle: %d bytes, size: %d bytes", len(o.Legacy.Handle), d.Size)
		return
	}
	c.app.Say("received", cli.Fields{"fd": files[0].Fd(), "fds": len(files), "size": d.Size, "chunk": d.ChunkSize},
		"Received FD: %s, size: %d bytes", cli.FDs(files), d.Size)
}

// follow goes to the device that the memory turned out to be on.
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

// verifyAndReport tells the producer whatever the verdict is, if it is still
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
		c.app.Say("acknowledged", cli.Fields{"ok": fault == nil}, "Sent acknowledgment to producer")
	}
	return errors.Join(fault, err)
}

// report waits for the producer to read the verdict, with bounds of its own.
func (c *consumer) report(ctx context.Context, fault error) error {
	defer c.app.Waiting()()
	return c.att.Report(ctx, fault)
}

// isTakenBack reports whether the producer waits for the memory to be closed, and will
// free it in any case.
func (c *consumer) isTakenBack() bool {
	return c.att.Offer().Legacy != nil && errors.Is(c.att.Err(), share.ErrRevoked)
}

// meta is what the producer says of its data, and the salt to check against.
func (c *consumer) meta() (pattern.Meta, error) {
	m, err := pattern.DecodeMeta(c.att.Offer().Data, c.att.Size())
	if c.expect != "" {
		m.Salt = c.salt
	}
	return m, err
}
