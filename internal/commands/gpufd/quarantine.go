package gpufd

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/keeper/api"
)

type quarantineFlags struct {
	part   int
	reason string
	undo   bool
	given  func(flag string) bool
}

func (p *program) quarantineCommand() *cobra.Command {
	var f quarantineFlags
	cmd := &cobra.Command{
		Use:   "quarantine NAME [--part I] [--reason TEXT] | quarantine NAME [--part I] --undo",
		Short: "Stop serving a name's parts, or serve them again",
		Long: `quarantine stops the keeper from serving the current version of NAME, or one part of it,
until --undo. This takes the right to write or remove the name. Readers, too, put a part in
quarantine if they cannot map it as its writer declared it.

--undo serves it again, which takes the right to remove the name. A damaged part is never
served again: put another version.`,
		Args: p.args(1, 1, "a name"),
		RunE: func(c *cobra.Command, args []string) error {
			f.given = c.Flags().Changed
			if f.part < 0 {
				return cli.Usagef("--part %d: want 0 or more", f.part)
			}
			if f.undo && f.given("reason") {
				return cli.Usagef("want --undo or --reason, not both")
			}
			return p.ask(c, func(ctx context.Context, k *keeper.Client) error { return p.quarantine(ctx, k, args[0], f) })
		},
	}
	cmd.Flags().IntVar(&f.part, "part", 0, "only the `part` of this number")
	cmd.Flags().StringVar(&f.reason, "reason", "an operator said so", "the `text` that gpufd stat shows")
	cmd.Flags().BoolVar(&f.undo, "undo", false, "serve again what is in quarantine")
	return cmd
}

func (p *program) quarantine(ctx context.Context, k *keeper.Client, name string, f quarantineFlags) error {
	n, err := k.Stat(ctx, name)
	if err != nil {
		return err
	}
	if f.part >= len(n.Parts) {
		return &api.Error{Code: "not-found", Message: fmt.Sprintf("%s, version %d, has no part %d: it has %s", name, n.Version, f.part, cli.Count(len(n.Parts), "part"))}
	}
	verdict, reason := "quarantined", f.reason
	if f.undo {
		verdict, reason = "ok", ""
	}
	changed := []int{}
	for _, part := range n.Parts {
		if f.given("part") && part.Part != f.part || f.undo && part.State == "ok" {
			continue
		}
		counted, err := k.Report(ctx, name, n.Version, part.Part, verdict, reason)
		if err != nil {
			return err
		}
		if !counted {
			return &api.Error{Code: "denied", Message: "the keeper has noted it but goes on serving, because this user may not write or remove " + name}
		}
		changed = append(changed, part.Part)
	}
	p.result = app.Fields{"name": name, "version": n.Version, "parts": changed}
	switch {
	case len(changed) == 0:
		p.say("%s, version %d: no part is in quarantine", name, n.Version)
	case f.undo:
		p.say("%s, version %d: %s served again", name, n.Version, cli.Count(len(changed), "part"))
	default:
		p.say("%s, version %d: %s in quarantine", name, n.Version, cli.Count(len(changed), "part"))
	}
	return nil
}
