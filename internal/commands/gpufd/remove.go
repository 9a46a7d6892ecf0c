package gpufd

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/keeper"
)

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
