package gpufd

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/keeper/api"
)

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
func (p *program) describe(n api.Info) {
	p.say("%s, version %d: %s, %s", n.Name, n.Version, n.State, cli.Human(n.Bytes))
	if n.ReservedBytes > 0 {
		p.say("  reserved by writers: %s", cli.Human(n.ReservedBytes))
	}
	for _, k := range slices.Sorted(maps.Keys(n.Labels)) {
		p.say("  label %s=%s", k, n.Labels[k])
	}
	for _, part := range n.Parts {
		line := fmt.Sprintf("  part %d: %s on %s, %s, %s", part.Part, cli.Human(part.Bytes), part.Device, part.State, part.Digest)
		if part.Parked {
			line += ", parked in memory of the host"
		}
		if part.Reason != "" {
			line += ": " + part.Reason
		}
		if part.Writer != nil && part.State != "ok" {
			line += "; written by " + processText(*part.Writer)
		}
		for _, pid := range part.WritableBy {
			if pid == 0 {
				line += "; writable by a process in another PID namespace"
			} else {
				line += fmt.Sprintf("; writable by PID %d", pid)
			}
		}
		p.say("%s", line)
	}
	for _, h := range n.Holders {
		p.say("  held by %s", holder(h))
	}
	for _, r := range n.Retired {
		parked := map[bool]string{true: ", parked in memory of the host"}[slices.ContainsFunc(r.Parts, func(on api.PartOn) bool { return on.Parked })]
		p.say("  %s version %d: %s%s", map[bool]string{false: "retired", true: "given up"}[r.Gone], r.Version, cli.Human(r.Bytes), parked)
		for _, h := range r.Holders {
			p.say("    held by %s", holder(h))
		}
	}
	p.say("  rm frees %s", cli.Human(n.FreesBytes))
}

// processText names a process for people.
func processText(h api.Holder) string {
	if h.PID != 0 {
		return fmt.Sprintf("PID %d of uid %d", h.PID, h.UID)
	}
	if h.Process != 0 {
		return fmt.Sprintf("a process in another PID namespace (the keeper's number %d) of uid %d", h.Process, h.UID)
	}
	return fmt.Sprintf("a process in another PID namespace of uid %d", h.UID)
}

// holder describes a process that has memory, for people.
func holder(h api.Holder) string {
	text := fmt.Sprintf("%s, %s, part %d, since %s", processText(h), h.Access, h.Part, h.Since.Format(time.RFC3339))
	switch {
	case h.Fenced:
		return text + ", which has died"
	case h.Lost && h.Detached:
		return text + ", detached, whose connection is lost"
	case h.Lost:
		return text + ", whose connection is lost"
	case h.Revoked:
		return text + ", which was told to release it and still runs"
	case h.Detached:
		return text + ", detached"
	}
	return text
}
