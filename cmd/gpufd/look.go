package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/keeper"
)

func (p *program) lsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List the names that are kept", Args: p.args(0, 0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			return p.ask(c, func(ctx context.Context, k *keeper.Client) error {
				names, err := k.List(ctx)
				if err != nil {
					return err
				}
				p.list(names)
				return nil
			})
		},
	}
}

// ask runs f with a connection to the keeper, within --timeout.
func (p *program) ask(c *cobra.Command, f func(context.Context, *keeper.Client) error) error {
	ctx, cancel := p.within(c)
	defer cancel()
	k, err := p.dial(ctx)
	if err != nil {
		return err
	}
	return errors.Join(f(ctx, k), k.Close())
}

func (p *program) list(names []keeper.Info) {
	if p.json {
		for _, n := range names {
			p.object(n)
		}
		return
	}
	w := tabwriter.NewWriter(p.out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tVERSION\tSTATE\tSIZE\tPARTS\tHOLDERS\tFREES")
	for _, n := range names {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%d\t%d\t%s\n", n.Name, n.Version, n.State, cli.Human(n.Bytes), len(n.Parts), len(n.Holders), cli.Human(n.FreesBytes))
	}
	w.Flush()
}

func (p *program) statCommand() *cobra.Command {
	return &cobra.Command{
		Use: "stat NAME", Short: "Say what is kept under a name, and who has it", Args: p.args(1, 1, "a name"),
		RunE: func(c *cobra.Command, args []string) error {
			return p.ask(c, func(ctx context.Context, k *keeper.Client) error {
				n, err := k.Stat(ctx, args[0])
				if err != nil {
					return err
				}
				if p.json {
					p.object(n)
				} else {
					p.describe(n)
				}
				return nil
			})
		},
	}
}

// describe prints all of a name for people.
func (p *program) describe(n keeper.Info) {
	p.say("%s, version %d: %s, %s", n.Name, n.Version, n.State, cli.Human(n.Bytes))
	if n.ReservedBytes > 0 {
		p.say("  reserved by writers: %s", cli.Human(n.ReservedBytes))
	}
	for k, v := range n.Labels {
		p.say("  label %s=%s", k, v)
	}
	for _, part := range n.Parts {
		line := fmt.Sprintf("  part %d: %s on %s, %s, %s", part.Part, cli.Human(part.Bytes), part.Device, part.State, part.Digest)
		if part.Reason != "" {
			line += ": " + part.Reason
		}
		for _, pid := range part.WritableBy {
			line += fmt.Sprintf("; writable by PID %d", pid)
		}
		p.say("%s", line)
	}
	for _, h := range n.Holders {
		p.say("  held by PID %d of uid %d, %s, since %s", h.PID, h.UID, h.Access, h.Since.Format(time.RFC3339))
	}
	for _, r := range n.Retired {
		p.say("  retired version %d: %s, %s", r.Version, cli.Human(r.Bytes), cli.Count(len(r.Holders), "holder"))
	}
	p.say("  rm frees %s", cli.Human(n.FreesBytes))
}

func (p *program) rmCommand() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME…", Short: "Give names up; readers keep what they have mapped", Args: p.args(1, -1, "one name at least"),
		RunE: func(c *cobra.Command, args []string) error {
			return p.ask(c, func(ctx context.Context, k *keeper.Client) error {
				for _, name := range args {
					if err := k.Remove(ctx, name); err != nil {
						return err
					}
					p.say("%s is removed", name)
				}
				p.result = cli.Fields{"removed": args}
				return nil
			})
		},
	}
}

func (p *program) watchCommand() *cobra.Command {
	return &cobra.Command{
		Use: "watch [NAME]", Short: "Print what happens to a name, or to all, until a signal comes", Args: p.args(0, 1, "one name at most"),
		RunE: func(c *cobra.Command, args []string) error {
			ctx, cancel := p.within(c)
			k, err := p.dial(ctx)
			cancel()
			if err != nil {
				return err
			}
			err = k.Watch(c.Context(), strings.Join(args, ""), func(e keeper.Event) bool {
				if p.json {
					p.object(e)
				} else {
					p.say("%s %s %s version %d %s", e.Time.Format(time.RFC3339), e.Name, e.Kind, e.Version, e.Text)
				}
				return true
			})
			if c.Context().Err() != nil { // it serves until a signal
				err = nil
			}
			return errors.Join(err, k.Close())
		},
	}
}

func (p *program) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: p.args(0, 0, "no arguments"),
		RunE: func(*cobra.Command, []string) error {
			if p.json {
				p.object(cli.Fields{"version": cli.Version()})
			}
			p.say("gpufd %s", cli.Version())
			return nil
		},
	}
}

func (p *program) drainCommand() *cobra.Command {
	var device string
	var undo, keep bool
	cmd := &cobra.Command{
		Use:   "drain NAME | drain --device DEVICE",
		Short: "Wait until nobody has a name, or anything on a device, and free it",
		Long: `drain gives a name, or all that is kept on a device, to no new readers, tells those
that have it, waits until they have let go, and frees it. A time that is over leaves it
draining, and names who has it; --undo has it be served again. Use it before an update of
the driver or a reset of a GPU.`,
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
	cmd.Flags().StringVar(&device, "device", "", "the `UUID` of a device")
	cmd.Flags().BoolVar(&undo, "undo", false, "serve again what was draining")
	cmd.Flags().BoolVar(&keep, "keep", false, "wait, and free nothing")
	return cmd
}

func (p *program) drainName(ctx context.Context, k *keeper.Client, name string, undo, keep bool) error {
	if err := k.Drain(ctx, name, !undo); err != nil || undo {
		return err
	}
	if err := p.drained(ctx, k, name); err != nil || keep {
		return err
	}
	if err := k.Remove(ctx, name); err != nil {
		return err
	}
	p.say("%s is drained and removed", name)
	p.result = cli.Fields{"removed": []string{name}}
	return nil
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
		case len(n.Holders) == 0:
			return nil
		}
		last = n.Holders
		select {
		case <-ctx.Done():
		case <-time.After(drainPause):
		}
	}
}

func (p *program) drainDevice(ctx context.Context, k *keeper.Client, device string, undo, keep bool) error {
	dev, err := cu.ParseUUID(device)
	if err != nil {
		return cli.Usagef("--device %q: want the UUID of a device, as nvidia-smi -L prints it: %w", device, err)
	}
	if err := k.DrainDevice(ctx, dev, !undo); err != nil || undo {
		return err
	}
	names, err := k.List(ctx)
	if err != nil {
		return err
	}
	var removed []string
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
	p.say("device %s is drained: %s removed", dev, cli.Count(len(removed), "name"))
	p.result = cli.Fields{"removed": removed}
	return nil
}

func isOn(n keeper.Info, device string) bool {
	for _, part := range n.Parts {
		if part.Device == device {
			return true
		}
	}
	return false
}
