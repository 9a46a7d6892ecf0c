package gpufd

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/keeper"
)

// completeIn is how long a shell waits for the keeper's names.
const completeIn = 500 * time.Millisecond

// completions tells shells the values of flags, and the names that a keeper has.
func (p *program) completions(root *cobra.Command) {
	app.CompleteFlags(root)
	for _, c := range root.Commands() {
		switch c.Name() {
		case "get", "stat", "drain", "park", "unpark", "quarantine", "watch":
			c.ValidArgsFunction = p.completeNames(1, cobra.ShellCompDirectiveNoFileComp)
		case "rm":
			c.ValidArgsFunction = p.completeNames(1<<10, cobra.ShellCompDirectiveNoFileComp)
		case "put":
			c.ValidArgsFunction = p.completeNames(1, cobra.ShellCompDirectiveDefault) // files come behind the name
		}
	}
}

// completeNames offers the keeper's names for the first n arguments; later says what comes behind them.
func (p *program) completeNames(n int, later cobra.ShellCompDirective) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) >= n {
			return nil, later
		}
		names := slices.DeleteFunc(p.kept(c.Context()), func(name string) bool { return slices.Contains(args, name) })
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// kept returns the keeper's names; none if it does not answer soon.
func (p *program) kept(ctx context.Context) (names []string) {
	ctx, cancel := context.WithTimeout(ctx, completeIn)
	defer cancel()
	k, err := keeper.Dial(ctx, p.socket)
	if err != nil {
		return nil
	}
	defer k.Close()
	all, _ := k.List(ctx)
	for _, n := range all {
		names = append(names, n.Name)
	}
	return names
}

// completeAlone makes the script for bash work where the package bash-completion is not installed.
func completeAlone(root *cobra.Command) {
	c, _, _ := root.Find([]string{"completion", "bash"})
	c.Long = `bash prints the completion script for bash 4.4 or newer. To load it:

  source <(gpufd completion bash)

To load it in every new shell, write it to /etc/bash_completion.d/gpufd if the package
bash-completion is installed, or else add that line to ~/.bashrc.`
	c.RunE = func(*cobra.Command, []string) error { return app.WriteCompletion(root.OutOrStdout(), root, "bash") }
}
