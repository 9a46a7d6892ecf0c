package gpufd

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/keeper/api"
)

func (p *program) drainCommand() *cobra.Command {
	var device string
	var undo, keep bool
	cmd := &cobra.Command{
		Use:   "drain NAME | drain --device DEVICE",
		Short: "Wait until no process has a name, or anything on a device, and free it",
		Long: `drain stops serving a name, or everything that is kept on a device, to new readers. It
tells the readers that have it, waits until they have released it, and frees it. If
--timeout is over first, drain names the processes that have it, and leaves it draining;
--undo serves it again. Until then a device takes no new memory either: drain it before a
reset or an update of the driver.`,
		Args: p.args(0, 1, "a name, or --device"),
		RunE: func(c *cobra.Command, args []string) error {
			if (len(args) == 1) == (device != "") {
				return cli.Usagef("want a name or --device, exactly one")
			}
			var dev cu.UUID
			if device != "" {
				var err error
				if dev, err = p.findDevice(device); err != nil {
					return err
				}
			}
			return p.ask(c, func(ctx context.Context, k *keeper.Client) error {
				if device != "" {
					return p.drainDevice(ctx, k, dev, undo, keep)
				}
				return p.drainName(ctx, k, args[0], undo, keep)
			})
		},
	}
	cmd.Flags().StringVar(&device, "device", "", "the `device` to drain, an ordinal or a UUID")
	cmd.Flags().BoolVar(&undo, "undo", false, "serve again what is draining")
	app.DriverFlag(cmd.Flags(), &p.driver)
	cmd.Flags().BoolVar(&keep, "keep", false, "wait, and free nothing")
	return cmd
}

func (p *program) drainName(ctx context.Context, k *keeper.Client, name string, undo, keep bool) error {
	if undo {
		if err := k.Undrain(ctx, name); err != nil {
			return err
		}
		p.undone(name)
		return nil
	}
	if err := k.Drain(ctx, name); err != nil {
		return err
	}
	p.result = app.Fields{"removed": []string{}}
	before, err := k.Stat(ctx, name)
	if err != nil {
		return err
	}
	n, err := p.drained(ctx, k, name)
	if err != nil {
		return err
	}
	if !keep {
		if err := k.RemoveVersion(ctx, name, before.Version); err != nil {
			return fmt.Errorf("%s was drained but not removed: %w; it stays draining until gpufd drain --undo", name, err)
		}
		p.result = app.Fields{"removed": []string{name}}
	}
	p.say("%s is drained%s", name, map[bool]string{false: " and removed"}[keep])
	if told := toldToLetGo(n); len(told) > 0 {
		p.result["holders"] = told
		p.say("  told earlier to release it, and still running: %s", keeper.PIDs(told))
	}
	return nil
}

// undone prints that what was draining is served again.
func (p *program) undone(what string) {
	p.say("%s is served again", what)
	p.result = app.Fields{"removed": []string{}}
}

// drainPause is the time between two looks of drain.
const drainPause = 100 * time.Millisecond

// drained waits until no process has a name, and returns what is left of it. It does not wait
// for processes that were told to release it and still run: nothing tells when they do.
func (p *program) drained(ctx context.Context, k *keeper.Client, name string) (api.Info, error) {
	var last []api.Holder
	for {
		n, err := k.Stat(ctx, name)
		switch {
		case err != nil && ctx.Err() != nil:
			return n, p.held(name, last)
		case err != nil:
			return n, err
		}
		if last = slices.DeleteFunc(holdersOf(n), func(h api.Holder) bool { return h.Revoked }); len(last) == 0 {
			return n, nil
		}
		pause(ctx)
	}
}

// held returns the error of a wait that has timed out.
func (p *program) held(what string, by []api.Holder) error {
	return cli.Codef(cli.ExitPeer, "%w", &api.Error{Code: "draining", Message: fmt.Sprintf("%s is still held by %s after %s, and stays draining", what, keeper.PIDs(by), p.timeout), Holders: by})
}

// pause waits until it is time to look again: more often towards the end of ctx, so that a process
// that leaves late is not missed.
func pause(ctx context.Context) {
	d := drainPause
	if end, ok := ctx.Deadline(); ok {
		d = min(d, max(time.Until(end)/2, time.Millisecond))
	}
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// holdersOf returns the holders of the current version and of the retired ones.
func holdersOf(n api.Info) []api.Holder {
	all := slices.Clone(n.Holders)
	for _, r := range n.Retired {
		all = append(all, r.Holders...)
	}
	return all
}

// toldToLetGo returns the processes that may still have memory that the keeper has taken back.
func toldToLetGo(n api.Info) []api.Holder {
	return slices.DeleteFunc(holdersOf(n), func(h api.Holder) bool { return !h.Revoked })
}

// findDevice returns a device's UUID. It asks the driver if device is not one.
func (p *program) findDevice(device string) (cu.UUID, error) {
	if id, err := cu.ParseUUID(device); err == nil {
		return id, nil
	}
	drv, err := p.open()
	if err != nil {
		return cu.UUID{}, fmt.Errorf("--device %q is not a UUID, and the driver does not know it: %w", device, err)
	}
	dev, err := drv.FindDevice(device)
	if err != nil {
		return cu.UUID{}, err
	}
	return dev.UUID(), nil
}

func (p *program) drainDevice(ctx context.Context, k *keeper.Client, dev cu.UUID, undo, keep bool) error {
	if undo {
		if err := k.UndrainDevice(ctx, dev); err != nil {
			return err
		}
		p.undone("device " + dev.String())
		return nil
	}
	if err := k.DrainDevice(ctx, dev); err != nil {
		return err
	}
	p.result = app.Fields{"removed": []string{}}
	removed := []string{}
	for last := []keeper.Use(nil); ; {
		uses, err := usesOf(ctx, k, dev)
		switch {
		case ctx.Err() != nil:
			return p.stillThere(dev, last)
		case err != nil:
			return err
		}
		last = uses
		now, err := p.free(ctx, k, uses, keep)
		removed = append(removed, now...)
		p.result["removed"] = removed
		if err != nil {
			return err
		}
		if isDrained(uses, keep) {
			break
		}
		if len(now) == 0 {
			pause(ctx)
		}
	}
	p.say("device %s is drained: %s removed; to let it take memory again, use --undo", dev, cli.Count(len(removed), "name"))
	return nil
}

// usesOf returns everything that takes memory of a device.
func usesOf(ctx context.Context, k *keeper.Client, dev cu.UUID) (all []keeper.Use, err error) {
	names, err := k.List(ctx)
	for _, n := range names {
		all = append(all, keeper.UsesOf(n, dev)...)
	}
	return all, err
}

// free removes the names that nobody holds, unless --keep is set.
func (p *program) free(ctx context.Context, k *keeper.Client, uses []keeper.Use, keep bool) (removed []string, err error) {
	for _, u := range uses {
		held := func(o keeper.Use) bool { return o.Name == u.Name && !o.Gone && o.Version > 0 && len(o.Holders) > 0 }
		if !u.Current || keep || slices.ContainsFunc(uses, held) {
			continue
		}
		err := k.RemoveVersion(ctx, u.Name, u.Version)
		if code := keeperCode(err); code == "conflict" || code == "not-found" {
			continue // it is another one now
		}
		if err != nil {
			return removed, err
		}
		removed = append(removed, u.Name)
	}
	return removed, nil
}

// isDrained reports whether nothing is in use any more, except what --keep keeps.
func isDrained(uses []keeper.Use, keep bool) bool {
	return !slices.ContainsFunc(uses, func(u keeper.Use) bool { return !keep || !u.Current || len(u.Holders) > 0 })
}

// stillThere returns the error of a device on which something is left.
func (p *program) stillThere(dev cu.UUID, uses []keeper.Use) error {
	no := &api.Error{Code: "draining", Message: fmt.Sprintf("device %s is still in use after %s, and stays draining", dev, p.timeout)}
	for _, u := range uses {
		no.Message += "; " + u.String()
		no.Holders = append(no.Holders, u.Holders...)
	}
	return cli.Codef(cli.ExitPeer, "%w", no)
}
