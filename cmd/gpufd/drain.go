package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/keeper"
)

func (p *program) drainCommand() *cobra.Command {
	var device string
	var undo, keep bool
	cmd := &cobra.Command{
		Use:   "drain NAME | drain --device DEVICE",
		Short: "Wait until nobody has a name, or anything on a device, and free it",
		Long: `drain gives a name, or all that is kept on a device, to no new readers, tells those
that have it, waits until they have let go, and frees it. A time that is over leaves it
draining, and names who has it; --undo has it be served again. A device takes no new
memory until then, either: drain it before an update of the driver or a reset.`,
		Args: p.args(0, 1, "a name, or --device"),
		RunE: func(c *cobra.Command, args []string) error {
			if (len(args) == 1) == (device != "") {
				return cli.Usagef("want a name or --device, one of them")
			}
			return p.ask(c, func(ctx context.Context, k *keeper.Client) error {
				if device != "" {
					return p.drainDevice(ctx, k, device, undo, keep)
				}
				return p.drainName(ctx, k, args[0], undo, keep)
			})
		},
	}
	cmd.Flags().StringVar(&device, "device", "", "the `device` to drain, an ordinal or a UUID")
	cmd.Flags().BoolVar(&undo, "undo", false, "serve again what was draining")
	p.driverFlag(cmd)
	cmd.Flags().BoolVar(&keep, "keep", false, "wait, and free nothing")
	return cmd
}

func (p *program) drainName(ctx context.Context, k *keeper.Client, name string, undo, keep bool) error {
	if err := k.Drain(ctx, name, !undo); err != nil {
		return err
	}
	if undo {
		p.undone(name)
		return nil
	}
	p.result = cli.Fields{"removed": []string{}}
	if err := p.drained(ctx, k, name); err != nil {
		return err
	}
	if keep {
		p.say("%s is drained", name)
		return nil
	}
	if err := k.Remove(ctx, name); err != nil {
		return err
	}
	p.say("%s is drained and removed", name)
	p.result = cli.Fields{"removed": []string{name}}
	return nil
}

// undone says that what was draining is served again.
func (p *program) undone(what string) {
	p.say("%s drains no more", what)
	p.result = cli.Fields{"removed": []string{}}
}

// drainPause is how often drain looks.
const drainPause = 100 * time.Millisecond

// drained waits until nobody has a name.
func (p *program) drained(ctx context.Context, k *keeper.Client, name string) error {
	var last []keeper.Holder
	for {
		n, err := k.Stat(ctx, name)
		switch {
		case ctx.Err() != nil:
			return cli.Codef(cli.ExitPeer, "%w", &keeper.Error{Code: "draining", Message: fmt.Sprintf("%s is still held by %s after %s, and drains on", name, cli.Count(len(last), "process"), p.timeout), Holders: last})
		case err != nil:
			return err
		}
		if last = holdersOf(n); len(last) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(drainPause):
		}
	}
}

// holdersOf are those of the current version, and of those that are retired.
func holdersOf(n keeper.Info) []keeper.Holder {
	all := n.Holders
	for _, r := range n.Retired {
		all = append(all, r.Holders...)
	}
	return all
}

// findDevice reads a device, which the driver is asked for where it is no UUID.
func (p *program) findDevice(device string) (cu.UUID, error) {
	if id, err := cu.ParseUUID(device); err == nil {
		return id, nil
	}
	drv, err := p.open()
	if err != nil {
		return cu.UUID{}, fmt.Errorf("--device %q is no UUID, and no driver knows it: %w", device, err)
	}
	dev, err := drv.FindDevice(device)
	if err != nil {
		return cu.UUID{}, err
	}
	return dev.UUID(), nil
}

func (p *program) drainDevice(ctx context.Context, k *keeper.Client, device string, undo, keep bool) error {
	dev, err := p.findDevice(device)
	if err != nil {
		return err
	}
	if err := k.DrainDevice(ctx, dev, !undo); err != nil {
		return err
	}
	if undo {
		p.undone("device " + dev.String())
		return nil
	}
	names, err := k.List(ctx)
	if err != nil {
		return err
	}
	removed := []string{}
	for _, n := range names {
		if !isOn(n, dev.String()) {
			continue
		}
		if err := p.drained(ctx, k, n.Name); err != nil {
			return err
		}
		if keep {
			continue
		}
		if err := k.Remove(ctx, n.Name); err != nil {
			return err
		}
		removed = append(removed, n.Name)
	}
	p.say("device %s is drained: %s removed; with --undo it takes memory again", dev, cli.Count(len(removed), "name"))
	p.result = cli.Fields{"removed": removed}
	return nil
}

// isOn says whether a part of a name is on a device.
func isOn(n keeper.Info, device string) bool {
	for _, part := range n.Parts {
		if part.Device == device {
			return true
		}
	}
	return false
}
