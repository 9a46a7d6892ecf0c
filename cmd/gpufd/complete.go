package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufd/gpufd/channel"
	"github.com/gpufd/gpufd/keeper"
)

// completeIn is how long a shell waits for the keeper's names.
const completeIn = 500 * time.Millisecond

// completions tells shells the values of flags, and the names that a keeper has.
func (p *program) completions(root *cobra.Command) {
	for _, c := range root.Commands() {
		completeFlag(c, "driver", "auto", "cuda", "soft")
		switch c.Name() {
		case "get", "stat", "drain", "quarantine", "watch":
			c.ValidArgsFunction = p.completeNames(1, cobra.ShellCompDirectiveNoFileComp)
		case "rm":
			c.ValidArgsFunction = p.completeNames(1<<10, cobra.ShellCompDirectiveNoFileComp)
		case "put":
			c.ValidArgsFunction = p.completeNames(1, cobra.ShellCompDirectiveDefault) // files come behind the name
		}
		for _, sub := range c.Commands() {
			completeFlag(sub, "driver", "auto", "cuda", "soft")
			completeFlag(sub, "policy", channel.Block.String(), channel.DropOldest.String(), channel.DropNewest.String())
			completeFlag(sub, "join", "next", "newest")
		}
	}
}

// completeFlag tells the values of a flag, if c has it.
func completeFlag(c *cobra.Command, flag string, values ...cobra.Completion) {
	if c.Flags().Lookup(flag) != nil {
		_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
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
	script := c.RunE
	c.Long = `bash prints the completion script for bash 4.4 or newer. To load it:

  source <(gpufd completion bash)

To load it in every new shell, write it to /etc/bash_completion.d/gpufd if the package
bash-completion is installed, or else add that line to ~/.bashrc.`
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := script(c, args); err != nil {
			return err
		}
		_, err := fmt.Fprint(root.OutOrStdout(), aloneInBash)
		return err
	}
}

// aloneInBash takes the words of the line apart as bash-completion does: = and : do not end one.
const aloneInBash = `
if ! declare -F _get_comp_words_by_ref >/dev/null; then
    __gpufd_init_completion() {
        COMPREPLY=()
        local line=${COMP_LINE:0:COMP_POINT}
        read -ra words <<<"$line"
        [[ $line == *[[:space:]] ]] && words+=("")
        cword=$((${#words[@]} - 1))
        cur=${words[cword]} prev=${words[cword - 1]}
    }
fi
`
