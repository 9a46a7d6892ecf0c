package gpufd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/keeper"
)

func (p *program) lsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "ls", SuggestFor: []string{"list"}, Short: "List the names that are kept", Args: p.args(0, 0, "no arguments"),
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
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%d\t%d\t%s\n", plain.Text(n.Name), n.Version, plain.Text(n.State), cli.Human(n.Bytes), len(n.Parts), len(keeper.Processes(n.Holders)), cli.Human(n.FreesBytes))
	}
	w.Flush()
}

func (p *program) statCommand() *cobra.Command {
	return &cobra.Command{
		Use: "stat NAME", Short: "Show what is kept under a name, and which processes have it", Args: p.args(1, 1, "a name"),
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

// describe prints everything about a name for people.
func (p *program) describe(n keeper.Info) {
	p.say("%s, version %d: %s, %s", n.Name, n.Version, n.State, cli.Human(n.Bytes))
	if n.ReservedBytes > 0 {
		p.say("  reserved by writers: %s", cli.Human(n.ReservedBytes))
	}
	for _, k := range slices.Sorted(maps.Keys(n.Labels)) {
		p.say("  label %s=%s", k, n.Labels[k])
	}
	for _, part := range n.Parts {
		line := fmt.Sprintf("  part %d: %s on %s, %s, %s", part.Part, cli.Human(part.Bytes), part.Device, part.State, part.Digest)
		if part.Reason != "" {
			line += ": " + part.Reason
		}
		if part.Writer != nil && part.State != "ok" {
			line += "; written by " + who(*part.Writer)
		}
		for _, pid := range part.WritableBy {
			line += writableBy(pid)
		}
		p.say("%s", line)
	}
	for _, h := range n.Holders {
		p.say("  held by %s", holder(h))
	}
	for _, r := range n.Retired {
		p.say("  %s version %d: %s", map[bool]string{false: "retired", true: "given up"}[r.Gone], r.Version, cli.Human(r.Bytes))
		for _, h := range r.Holders {
			p.say("    held by %s", holder(h))
		}
	}
	p.say("  rm frees %s", cli.Human(n.FreesBytes))
}

// who names a process for people.
func who(h keeper.Holder) string {
	if h.PID != 0 {
		return fmt.Sprintf("PID %d of uid %d", h.PID, h.UID)
	}
	if h.Process != 0 {
		return fmt.Sprintf("a process in another PID namespace (the keeper's number %d) of uid %d", h.Process, h.UID)
	}
	return fmt.Sprintf("a process in another PID namespace of uid %d", h.UID)
}

// writableBy names a process that may still write, for people.
func writableBy(pid int32) string {
	if pid == 0 {
		return "; writable by a process in another PID namespace"
	}
	return fmt.Sprintf("; writable by PID %d", pid)
}

// holder describes a process that has memory, for people.
func holder(h keeper.Holder) string {
	text := fmt.Sprintf("%s, %s, part %d, since %s", who(h), h.Access, h.Part, h.Since.Format(time.RFC3339))
	switch {
	case h.Fenced:
		return text + ", which has died"
	case h.Lost:
		return text + ", whose connection is lost"
	case h.Revoked:
		return text + ", which was told to release it and still runs"
	}
	return text
}

func (p *program) rmCommand() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME…", SuggestFor: []string{"remove", "delete"}, Short: "Remove names; readers keep what they have mapped", Args: p.args(1, -1, "one name at least"),
		RunE: func(c *cobra.Command, args []string) error {
			return p.ask(c, func(ctx context.Context, k *keeper.Client) error {
				var failed []error
				removed := []string{}
				for _, name := range args {
					if err := k.Remove(ctx, name); err != nil {
						failed = append(failed, err)
						continue
					}
					p.say("%s is removed", name)
					removed = append(removed, name)
				}
				p.result = app.Fields{"removed": removed}
				p.told = true
				return errors.Join(failed...)
			})
		},
	}
}

func (p *program) watchCommand() *cobra.Command {
	return &cobra.Command{
		Use: "watch [NAME]", Short: "Print what happens to a name, or to all names, until a signal comes", Args: p.args(0, 1, "one name at most"),
		RunE: func(c *cobra.Command, args []string) error {
			k, err := p.connect(c.Context())
			if err != nil {
				return err
			}
			err = k.Watch(c.Context(), strings.Join(args, ""), func(e keeper.Event) bool {
				if p.json {
					p.object(e)
				}
				p.say("%s", event(e))
				return true
			})
			if errors.Is(context.Cause(c.Context()), app.ErrInterrupted) { // it serves until a signal
				err = nil
			}
			return errors.Join(err, k.Close())
		},
	}
}

// event describes an event for people.
func event(e keeper.Event) string {
	text := e.Time.Format(time.RFC3339) + " " + e.Name + " " + e.Kind
	if e.Version > 0 {
		text += fmt.Sprintf(" version %d", e.Version)
	}
	if e.Text != "" {
		text += ": " + e.Text
	}
	return text
}

func (p *program) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: p.args(0, 0, "no arguments"),
		RunE: func(*cobra.Command, []string) error {
			if p.json {
				p.object(app.Fields{"version": app.Version()})
			}
			p.say("gpufd %s", app.Version())
			return nil
		},
	}
}
