package producer

import (
	"context"
	"fmt"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/share"
)

func (p *producer) isLegacy() bool { return p.handle == "legacy" }

// checkHandle refuses flags that do not apply to legacy memory.
func (p *producer) checkHandle() error {
	if !p.isLegacy() {
		return nil
	}
	switch {
	case p.app.Flags.Changed("access") && p.access == "ro":
		return cli.Usagef("--access ro: every consumer can write legacy memory; leave --access out, or use --handle vmm")
	case p.chunk != 0:
		return cli.Usagef("--chunk %s: legacy memory is one allocation; use --handle vmm", p.chunk)
	case p.wait != 0:
		return cli.Usagef("--wait %s: --handle legacy cannot wait for memory; use --handle vmm", p.wait)
	}
	return nil
}

// needVMM adds what to do on a device whose memory can only be shared by legacy handles.
func (p *producer) needVMM() error {
	err := cli.NeedVMM(p.dev)
	if cli.ExitCode(err) == cli.ExitMachine && cli.NeedIPC(p.dev) == nil {
		return fmt.Errorf("%w; it has legacy IPC: use --handle legacy", err)
	}
	return err
}

// prepareLegacy makes memory that is shared by a legacy handle.
func (p *producer) prepareLegacy() error {
	if err := cli.NeedIPC(p.dev); err != nil {
		return err
	}
	p.app.Say("ipc", app.Fields{"supported": true}, "IPC support: yes")
	if err := p.refuseTooLarge(uint64(p.size), ""); err != nil {
		return err
	}
	if err := p.enter(); err != nil {
		return err
	}
	err := p.app.Timed("allocate", func() (err error) {
		p.legacy, err = share.NewLegacy(p.ctx, uint64(p.size))
		return err
	})
	if err != nil {
		return err
	}
	size, whole := p.legacy.Size(), p.legacy.Allocation()
	p.app.Result["size"], p.app.Result["aligned"] = size, whole
	p.app.Say("size", app.Fields{"size": size, "aligned": whole}, "Buffer size: %d bytes, aligned size: %d bytes", size, whole)
	p.app.Say("allocated", app.Fields{"address": p.legacy.Ptr().String(), "size": whole}, "Allocated device memory at %s", p.legacy.Ptr())
	p.app.Say("access", app.Fields{"access": cu.ReadWrite.String()}, "  every consumer can write it: legacy memory has no access rights")
	return nil
}

// sayClosingAtEnd prints how many consumers the end waits for when ctx ends, until stop is called. A line
// that was begun is complete before stop returns, because the result comes last.
func (p *producer) sayClosingAtEnd(ctx context.Context, w *watcher) (stop func()) {
	said := make(chan struct{})
	unhook := context.AfterFunc(ctx, func() {
		defer close(said)
		if n := w.holders(); n > 0 {
			p.app.Say("closing", app.Fields{"consumers": n, "longest_us": p.app.Timeout.Microseconds()},
				"  waiting for consumers to close the memory (%d), for %s at most", n, p.app.Timeout)
		}
	})
	return func() {
		if !unhook() {
			<-said
		}
	}
}

// ptr returns the address of the memory.
func (p *producer) ptr() cu.DevicePtr {
	if p.isLegacy() {
		return p.legacy.Ptr()
	}
	return p.buf.Ptr()
}
