// Package producer is the command producer.
package producer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/internal/pattern"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// A producer is one run of the command.
type producer struct {
	app *app.App

	device    string
	size      cli.Size
	chunk     cli.Size
	access    string // ro or rw
	handle    string // vmm or legacy
	consumers int
	wait      time.Duration
	salt      uint32
	way       string // gpu, cpu or neither
	socket    string
	allowed   app.PolicyFlags

	connections, perPeer int

	dev     *cu.Device
	ctx     *cu.Context
	kernels *cli.Kernels
	buf     *vmm.Buffer
	legacy  *share.Legacy // instead of buf
}

// New returns a run of the command.
func New(stdout io.Writer) *app.App {
	p := &producer{size: 1 << 20}
	p.app = app.New("producer", "fills device memory and offers it to consumers, as file descriptors or with a legacy IPC handle.", stdout)
	p.app.Check, p.app.Body = p.check, p.run
	f := p.app.Flags
	f.StringVar(&p.device, "device", "0", "device to use, by `N|UUID`")
	f.Var(&p.size, "size", "`bytes` to share, with units KiB, MiB, GiB; the memory is rounded up to the device's granularity, such as 2 MiB")
	f.Var(&p.chunk, "chunk", "build the buffer of chunks of this many `bytes`; the default is one chunk")
	app.Choice(f, &p.access, "access", "ro", "the most access that consumers may ask for: `ro|rw`", "ro", "rw")
	app.Choice(f, &p.handle, "handle", "vmm", "share memory by `vmm|legacy` handles: file descriptors, or the 64 bytes of cuIpcGetMemHandle, with which consumers can always write", "vmm", "legacy")
	f.IntVar(&p.consumers, "consumers", 1, "end after `N` consumers; 0 serves until interrupted")
	f.DurationVar(&p.wait, "wait", 0, "wait no longer than this `duration` for device memory in use by others; 0 fails at once")
	f.Uint32Var(&p.salt, "salt", 0, "XOR the data with this 32-bit `number`")
	app.Choice(f, &p.way, "fill", "", "make the data on the `gpu|cpu`; the default is the GPU if its driver can load the kernels, and the CPU with the software driver", "gpu", "cpu")
	f.StringVar(&p.socket, "socket", cli.DefaultSocket(), "`path` of the socket")
	p.app.AllowFlags(&p.allowed,
		"also serve users `U[,U...]`, by number or name; they must be able to search the socket's directory, so make one with mode 0711 and put --socket there",
		"also serve users whose effective group is one of `G[,G...]`, by number or name; see --allow-uid for the directory")
	f.IntVar(&p.connections, "connections", 1024, "serve at most `N` connections at once")
	f.IntVar(&p.perPeer, "connections-per-peer", 256, "serve at most `N` connections of one process at once")
	return p.app
}

func (p *producer) run(ctx context.Context) (err error) {
	title := "=== CUDA VMM Producer ==="
	if p.isLegacy() {
		title = "=== CUDA IPC Producer ==="
	}
	p.app.Say("start", app.Fields{"program": "producer", "handle": p.handle}, "%s", title)
	w := newWatcher(p.app, p.isLegacy())
	srv, err := p.listen(w)
	if err != nil {
		return err
	}
	forget := p.app.OnAbort(func() { _ = srv.Remove() })
	shut := func() error {
		defer forget()
		return srv.Close()
	}
	defer func() {
		err = p.app.Cleanup(err, shut, p.kernels.Close, p.buf.Close, p.legacy.Close, p.ctx.Close)
	}()
	offer, err := p.expect(srv, w) // early consumers wait and see our progress
	if err != nil {
		return err
	}
	if err := p.prepare(ctx, offer); err != nil {
		return err
	}
	if err := p.fill(ctx, offer); err != nil {
		return err
	}
	return p.serve(ctx, offer, w)
}

// expect makes consumers wait for the memory.
func (p *producer) expect(srv *share.Server, w *watcher) (*share.Offer, error) {
	opts := &share.OfferOptions{
		Pending: true, Access: app.Access(p.access), Data: p.meta().Encode(), MaxConsumers: p.consumers, Verdict: true, OnEvent: w.see,
	}
	if p.isLegacy() {
		opts.Access = 0 // consumers can always write it
	}
	if p.consumers > 0 {
		opts.IdleTimeout = p.app.Timeout
	}
	return srv.Offer(cli.OfferName, nil, opts)
}

// check checks what flag parsing cannot.
func (p *producer) check() error {
	switch {
	case p.consumers < 0:
		return cli.Usagef("--consumers %d: want 0 or more", p.consumers)
	case p.wait < 0:
		return cli.Usagef("--wait %s: want 0 or more", p.wait)
	case p.connections < 1:
		return cli.Usagef("--connections %d: want 1 or more", p.connections)
	case p.perPeer < 1:
		return cli.Usagef("--connections-per-peer %d: want 1 or more", p.perPeer)
	}
	return p.checkHandle()
}

// listen makes the socket, to which the admitted users can connect.
func (p *producer) listen(w *watcher) (*share.Server, error) {
	srv, err := cli.Listen(p.socket, func() (*share.Server, error) {
		return share.Listen(p.socket, &share.ListenOptions{Timeout: p.app.Timeout, Policy: p.allowed.Policy(), Mode: p.allowed.Mode(), MaxConnections: p.connections, MaxConnectionsPerPeer: p.perPeer, OnRefused: w.refused.see})
	})
	switch {
	case errors.Is(err, sock.ErrListening):
		return nil, cli.Codef(cli.ExitFailed, "another producer is already listening at %s: stop it, or choose another socket with --socket", p.socket)
	case err != nil:
		return nil, err
	}
	if err := p.allowed.Open(p.socket); err != nil {
		return nil, errors.Join(err, srv.Close())
	}
	p.app.Say("listening", app.Fields{"socket": p.socket}, "  listening at %s", p.socket)
	if why := p.allowed.Shut(p.socket); why != "" {
		p.app.Say("shut", app.Fields{"socket": p.socket}, "  %s", why)
	}
	return srv, nil
}

// prepare makes the buffer.
func (p *producer) prepare(ctx context.Context, offer *share.Offer) (err error) {
	if p.dev, err = p.app.Device(p.device); err != nil {
		return err
	}
	if p.isLegacy() {
		return p.prepareLegacy()
	}
	if err := p.needVMM(); err != nil {
		return err
	}
	p.app.Say("vmm", app.Fields{"supported": true}, "VMM support: yes")
	granularity, err := vmm.Granularity(p.dev)
	if err != nil {
		return err
	}
	p.app.Say("granularity", app.Fields{"bytes": granularity}, "Memory granularity: %d bytes", granularity)
	if err := p.announceSize(granularity); err != nil {
		return err
	}
	if err := p.enter(); err != nil {
		return err
	}
	p.buf, err = vmm.New(p.dev, uint64(p.size), vmm.WithChunkSize(uint64(p.chunk)))
	switch {
	case vmm.WouldWait(err) && p.wait == 0:
		return fmt.Errorf("%w; wait for it with --wait", err)
	case vmm.WouldWait(err):
		p.app.Say("wait", app.Fields{"longest_us": p.wait.Microseconds()}, "Waiting for device memory, for %s at most", p.wait)
		err = p.app.Timed("wait", func() error { return p.awaitBuffer(ctx, offer) })
	}
	if err == nil {
		p.app.SayCreated(p.buf)
	}
	return err
}

// enter takes the primary context, and loads the kernels that fill the memory.
func (p *producer) enter() (err error) {
	p.ctx, p.kernels, err = p.app.Enter(p.dev, "fill", p.way)
	return err
}

// awaitBuffer makes the buffer when there is memory for it.
func (p *producer) awaitBuffer(ctx context.Context, offer *share.Offer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, p.wait)
	defer cancel()
	defer p.app.Waiting()()
	defer p.app.Busy(func() string { return fmt.Sprintf("waiting for %s of device memory", cli.Human(uint64(p.size))) })()
	defer p.sayWorking(offer)()
	p.buf, err = vmm.NewWait(ctx, p.dev, uint64(p.size), vmm.WithChunkSize(uint64(p.chunk)))
	return err
}

// sayWorking tells early consumers now and then that this side is at work, until stop is
// called.
func (p *producer) sayWorking(offer *share.Offer) (stop func()) {
	stopped, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			offer.ReportProgress(0, uint64(p.size))
			select {
			case <-tick.C:
			case <-stopped:
				return
			}
		}
	}()
	return func() {
		close(stopped)
		<-done
	}
}

// refuseTooLarge refuses a size that takes more than the device could ever hold.
func (p *producer) refuseTooLarge(takes uint64, chunks string) error {
	total, err := p.dev.TotalMemory()
	if err == nil && takes > total {
		err = fmt.Errorf("--size %s%s is larger than device %s, which has %s", p.size, chunks, p.dev, cli.Human(total))
	}
	return err
}

// announceSize prints how much memory the buffer takes, unless the device could never hold it.
func (p *producer) announceSize(granularity uint64) error {
	unit, chunks := granularity, ""
	if p.chunk != 0 {
		unit, _ = vmm.AlignUp(uint64(p.chunk), granularity)
		chunks = fmt.Sprintf(" in chunks of %s", p.chunk)
	}
	aligned, ok := vmm.AlignUp(uint64(p.size), unit)
	if !ok {
		aligned = math.MaxUint64
	}
	if err := p.refuseTooLarge(aligned, chunks); err != nil {
		return err
	}
	p.app.Result["size"], p.app.Result["aligned"] = uint64(p.size), aligned
	p.app.Say("size", app.Fields{"size": uint64(p.size), "aligned": aligned, "chunks": aligned / unit},
		"Buffer size: %d bytes, aligned size: %d bytes", uint64(p.size), aligned)
	if aligned != uint64(p.size) {
		p.app.Note("  %s of device memory: it comes in multiples of %s", cli.Human(aligned), cli.Human(unit))
	}
	return nil
}

// fill writes the pattern to the device, a piece at a time.
func (p *producer) fill(ctx context.Context, offer *share.Offer) error {
	p.app.SayWay("fill", "filling", p.kernels)
	progress := func(done uint64) error {
		p.app.Progress("filling", done, uint64(p.size))
		offer.ReportProgress(done, uint64(p.size))
		return nil
	}
	err := p.app.Timed("fill", func() error {
		if p.kernels.OnGPU() {
			return p.kernels.Fill(ctx, p.ptr(), uint64(p.size), p.salt, progress)
		}
		return p.fillFromHost(ctx, progress)
	})
	if err != nil {
		return err
	}
	p.sayFilled()
	return nil
}

// sayFilled prints what was done: only the CPU copies.
func (p *producer) sayFilled() {
	fields := app.Fields{"integers": p.meta().Count, "salt": p.salt}
	if p.kernels.OnGPU() {
		p.app.Say("generated", fields, "Filled %s on the GPU", cli.Count(p.meta().Count, "test integer"))
		return
	}
	p.app.Say("generated", fields, "Generated %s", cli.Count(p.meta().Count, "test integer"))
	p.app.Say("copied", app.Fields{"bytes": uint64(p.size)}, "Copied test data to GPU")
}

// fillFromHost generates a piece while another is copied.
func (p *producer) fillFromHost(ctx context.Context, progress func(done uint64) error) error {
	dst := p.ptr()
	return pattern.Stream(ctx, uint64(p.size),
		func(offset uint64, b []byte) error {
			pattern.Fill(b, offset/pattern.Size, p.salt)
			return nil
		},
		func(offset uint64, b []byte) error {
			if err := progress(offset); err != nil {
				return err
			}
			return cu.CopyToDevice(p.ctx, dst.Add(offset), b)
		})
}

func (p *producer) meta() pattern.Meta {
	return pattern.Meta{Count: pattern.Count(uint64(p.size)), Salt: p.salt}
}

// sayWaiting prints for how many consumers the producer waits, where and for how long.
func (p *producer) sayWaiting() {
	fields := app.Fields{"socket": p.socket, "consumers": p.consumers}
	whom := "for consumers; ends when interrupted"
	if p.consumers > 0 {
		fields["longest_us"] = p.app.Timeout.Microseconds()
		whom = fmt.Sprintf("for %s; ends after %s without one", cli.Count(p.consumers, "consumer"), p.app.Timeout)
	}
	p.app.Say("waiting", fields, "Waiting for consumer connection...")
	p.app.Note("  at %s %s", p.socket, whom)
}

// serve offers the memory and follows the consumers. An error of one of them does not
// affect the others; the producer returns it in the end.
func (p *producer) serve(ctx context.Context, offer *share.Offer, w *watcher) error {
	defer w.served()
	err := p.app.Timed("serve", func() error {
		if p.isLegacy() {
			defer p.sayClosingAtEnd(ctx, w)()
			return p.offer(ctx, offer, w, p.legacy)
		}
		loan, err := p.buf.Lend() // the offer lends the same files
		if err != nil {
			return err
		}
		p.app.SayExported(loan.Files, p.buf.Mapped())
		_ = loan.Close() // it does not fail
		return p.offer(ctx, offer, w, p.buf)
	})
	p.app.Result["consumers"] = w.outcome()
	if errors.Is(context.Cause(ctx), app.ErrInterrupted) {
		p.app.Say("interrupted", nil, "Interrupted while serving")
	}
	return errors.Join(w.err(), err)
}

// offer offers the memory until its consumers have left, or ctx ends.
func (p *producer) offer(ctx context.Context, offer *share.Offer, w *watcher, memory share.Source) error {
	if err := offer.Provide(memory); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = offer.Close() })()
	if err := offer.Publish(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	w.serving()
	p.sayWaiting() // whoever reads it finds the offer, and its data
	<-offer.Done() // an interruption ends it, too
	return offer.Err()
}
