package gpufd

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/keeper/api"
)

func (p *program) parkCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "park NAME",
		Short: "Move a name to memory of the host, and free that of its devices",
		Long: `park copies the current version of NAME to memory of the host, which the keeper has made
before (gpufd keeper --park-pool), and frees the memory of its devices. Name, version and
digest stay the same. The first reader that attaches brings it back, or gpufd unpark.

park waits until all readers have detached or ended. If --timeout is over first, it names
those that have not.`,
		Args: p.args(1, 1, "a name"),
		RunE: func(c *cobra.Command, args []string) error {
			return p.ask(c, func(ctx context.Context, k *keeper.Client) error { return p.park(ctx, k, args[0]) })
		},
	}
}

func (p *program) unparkCommand() *cobra.Command {
	return &cobra.Command{
		Use: "unpark NAME", Short: "Move a name that is parked back to its devices", Args: p.args(1, 1, "a name"),
		Long: `unpark moves a name that is parked back to its devices. If a device has no room, it waits
for that until --timeout.`,
		RunE: func(c *cobra.Command, args []string) error {
			return p.ask(c, func(ctx context.Context, k *keeper.Client) error {
				return p.unpark(ctx, k, args[0])
			})
		},
	}
}

// park waits until no process has the name mapped, and has it parked.
func (p *program) park(ctx context.Context, k *keeper.Client, name string) error {
	var last []api.Holder
	for {
		n, err := k.Stat(ctx, name)
		if err == nil {
			last = attached(n)
		}
		if err == nil && len(last) == 0 {
			var m api.Moved
			if m, err = k.Park(ctx, name, 0); err == nil {
				p.moved(name, m, "parked")
				return nil
			}
		}
		switch no := refusalOf(err); {
		case ctx.Err() != nil && len(last) > 0:
			return p.inUse(name, last)
		case no == nil && err != nil:
			return p.unmoved(ctx, err, name, "parked")
		case no != nil && (no.Code != api.Conflict || len(no.Holders) == 0):
			return err
		}
		pause(ctx)
	}
}

// unpark asks the keeper until the devices have room.
func (p *program) unpark(ctx context.Context, k *keeper.Client, name string) error {
	for {
		m, err := k.Unpark(ctx, name, 0)
		switch no := refusalOf(err); {
		case err == nil:
			p.moved(name, m, "on its devices")
			return nil
		case no == nil:
			return p.unmoved(ctx, err, name, "brought back")
		case no.Code != api.NoRoom:
			return err
		}
		pause(ctx)
		if ctx.Err() != nil {
			return fmt.Errorf("%s stays parked: its device had no room for %s; park or remove other names (gpufd ls): %w", name, p.timeout, err)
		}
	}
}

// unmoved returns the error of a keeper that has not answered: it goes on, or the next one looks where the bytes are.
func (p *program) unmoved(ctx context.Context, err error, name, what string) error {
	if ctx.Err() != nil {
		return cli.Codef(cli.ExitPeer, "%s was not %s within %s, and the keeper goes on with it; gpufd ls says where it is", name, what, p.timeout)
	}
	return fmt.Errorf("it is not known whether %s was %s, and nothing is lost; ask the next keeper: %w", name, what, err)
}

// attached returns the processes that may have the current version mapped, and were not told to release it.
func attached(n api.Info) []api.Holder {
	return slices.DeleteFunc(slices.Clone(n.Holders), func(h api.Holder) bool { return h.Detached || h.Fenced || h.Revoked })
}

// inUse returns the error of a name whose readers have not detached in time.
func (p *program) inUse(name string, by []api.Holder) error {
	return cli.Codef(cli.ExitPeer, "%w", &api.Error{Code: api.Conflict, Message: fmt.Sprintf("%s is still in use by %s after %s, and was not parked", name, keeper.PIDs(by), p.timeout), Holders: by})
}

// moved prints what has moved.
func (p *program) moved(name string, m api.Moved, where string) {
	p.result = app.Fields{"name": name, "version": m.Version, "bytes": m.Bytes, "copy_seconds": m.Copy, "seconds": m.Seconds}
	if m.Bytes == 0 {
		p.say("%s, version %d, was %s already", name, m.Version, where)
		return
	}
	rate := uint64(float64(m.Bytes) / max(m.Copy, 1e-9))
	p.say("%s, version %d, is %s: %s in %.3f s (%s/s), %.2f s in all", name, m.Version, where, cli.Human(m.Bytes), m.Copy, cli.Human(rate), m.Seconds)
}
