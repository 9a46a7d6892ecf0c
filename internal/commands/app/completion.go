package app

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// CompleteFlags tells shells the values of the flags of c and of the commands below it: words if a
// flag takes only some, and nothing if it takes no text. Other values may be files.
func CompleteFlags(c *cobra.Command) {
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		var words []cobra.Completion
		if some, ok := f.Value.(*choice); ok {
			words = some.words
		} else if strings.HasPrefix(f.Value.Type(), "string") {
			return
		}
		_ = c.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)) // fails if c has one
	})
	for _, sub := range c.Commands() {
		CompleteFlags(sub)
	}
}

// WriteCompletion writes the script by which a shell (bash, zsh or fish) completes a program.
func WriteCompletion(w io.Writer, root *cobra.Command, shell string) error {
	switch shell {
	case "zsh":
		return root.GenZshCompletion(w)
	case "fish":
		return root.GenFishCompletion(w, true)
	}
	if err := root.GenBashCompletionV2(w, true); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, bashAlone, root.Name())
	return err
}

// bashAlone makes cobra's script work where the package bash-completion is not installed. It splits
// the line into words as that package does: = and : do not end one.
const bashAlone = `
if ! declare -F _get_comp_words_by_ref >/dev/null; then
    __%s_init_completion() {
        COMPREPLY=()
        local line=${COMP_LINE:0:COMP_POINT}
        read -ra words <<<"$line"
        [[ $line == *[[:space:]] ]] && words+=("")
        cword=$((${#words[@]} - 1))
        cur=${words[cword]} prev=${words[cword - 1]}
    }
fi
`
