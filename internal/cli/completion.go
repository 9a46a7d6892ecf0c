package cli

import (
	"errors"
	"flag"
	"fmt"
	"regexp"
	"strings"
)

// A shell is a flag of bash, zsh or fish.
type shell string

// Set reads the name of a shell.
func (s *shell) Set(name string) error {
	if completions[name] == nil {
		return errors.New("want bash, zsh or fish")
	}
	*s = shell(name)
	return nil
}

// String gives the name, or nothing.
func (s *shell) String() string { return string(*s) }

// completions write the script for each shell.
var completions = map[string]func(command) string{"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}

// A command is what a shell needs to know to complete it.
type command struct {
	name  string
	flags []flagWords
	args  []string // what an argument may begin with; a colon and a file may follow
}

// A flagWords is a flag, and what may follow it.
type flagWords struct {
	name, does string
	value      string   // what the help calls its value; empty of a flag that takes none
	words      []string // all that its value may be, or some of it
	files      bool     // its value is the name of a file
}

// choice matches the placeholder of a value that is one of several words.
var choice = regexp.MustCompile(`^[a-z]+(\|[a-z]+)+$`)

// completionScript makes the script that was asked for.
func (a *App) completionScript() string {
	c := command{name: a.name, args: a.ArgValues}
	a.Flags.VisitAll(func(f *flag.Flag) {
		value, usage := flag.UnquoteUsage(f)
		does, _, _ := strings.Cut(usage, ";")
		words := flagWords{name: f.Name, does: does, value: value, words: a.Values[f.Name], files: value == "file" || value == "path"}
		if words.words == nil && choice.MatchString(value) {
			words.words = strings.Split(value, "|")
		}
		c.flags = append(c.flags, words)
	})
	c.flags = append(c.flags, flagWords{name: "help", does: "show the help and exit"})
	return completions[string(a.completion)](c)
}

// dashed is the flag's name behind dashes: one does where the name has one letter.
func (f flagWords) dashed() string {
	if len(f.name) == 1 {
		return "-" + f.name
	}
	return "--" + f.name
}

// bashCompletion makes a function of the words before the cursor. bash takes = for a word
// of its own.
func bashCompletion(c command) string {
	var cases, names strings.Builder
	for _, f := range c.flags {
		fmt.Fprintf(&names, " %s", f.dashed())
		switch {
		case f.value == "":
		case f.files:
			fmt.Fprintf(&cases, "\t-%s|--%s)%s; return ;;\n", f.name, f.name, bashFiles)
		default:
			fmt.Fprintf(&cases, "\t-%s|--%s) COMPREPLY=($(compgen -W '%s' -- \"$cur\")); return ;;\n", f.name, f.name, strings.Join(f.words, " "))
		}
	}
	fn := "_gpufd_" + c.name
	return fmt.Sprintf(`# bash completion for %[1]s. To load it:
#   source <(%[1]s --completion bash)
%[2]s() {
	local cur=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} flags='%[3]s'
	COMPREPLY=()
	if [[ $cur == = ]]; then
		cur=
	elif [[ $before == = && COMP_CWORD -gt 1 ]]; then
		before=${COMP_WORDS[COMP_CWORD-2]}
	fi
	case $before in
%[4]s	esac
	case $cur in
	--*) COMPREPLY=($(compgen -W "$flags" -- "$cur")) ;;
	-*) COMPREPLY=($(compgen -W "$flags ${flags//--/-}" -- "$cur")) ;;
	*)%[5]s ;;
	esac
}
complete -F %[2]s %[1]s
`, c.name, fn, strings.TrimSpace(names.String()), cases.String(), bashArguments(c))
}

// bashFiles completes the name of a file.
const bashFiles = ` compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur")`

// bashArguments completes what is no flag. Behind a colon, which bash takes for a word of
// its own, a file may be named.
func bashArguments(c command) string {
	if len(c.args) == 0 {
		return ""
	}
	return fmt.Sprintf(` [[ $cur == : ]] && before=: cur=
		if [[ $before == : ]]; then%s
		else compopt -o nospace 2>/dev/null; COMPREPLY=($(compgen -W '%s' -- "$cur"))
		fi`, bashFiles, strings.Join(c.args, " "))
}

// zshQuoted is s for a specification of _arguments within single quotes.
var zshQuoted = strings.NewReplacer(`'`, `'\''`, `[`, `\[`, `]`, `\]`, `:`, `\:`)

// zshCompletion makes the specifications of _arguments.
func zshCompletion(c command) string {
	var b strings.Builder
	fmt.Fprintf(&b, "#compdef %[1]s\n# zsh completion for %[1]s. To load it:\n#   source <(%[1]s --completion zsh)\n_gpufd_%[1]s() {\n\t_arguments", c.name)
	for _, f := range c.flags {
		equals, value := "", ""
		if f.value != "" {
			equals, value = "=", ":"+zshQuoted.Replace(f.value)+":"+zshAction(f.words, f.files)
		}
		fmt.Fprintf(&b, " \\\n\t\t'%s%s[%s]%s'", f.dashed(), equals, zshQuoted.Replace(f.does), value)
	}
	if len(c.args) > 0 {
		fmt.Fprintf(&b, " \\\n\t\t'*:argument:%s'", zshAction(c.args, false))
	}
	fmt.Fprintf(&b, "\n}\ncompdef _gpufd_%[1]s %[1]s\n", c.name)
	return b.String()
}

func zshAction(words []string, files bool) string {
	switch {
	case len(words) > 0:
		return "(" + zshQuoted.Replace(strings.Join(words, " ")) + ")"
	case files:
		return "_files"
	}
	return " "
}

// fishQuoted is s within single quotes of fish.
var fishQuoted = strings.NewReplacer(`\`, `\\`, `'`, `\'`)

// fishCompletion makes a line for each flag.
func fishCompletion(c command) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# fish completion for %[1]s. To load it:\n#   %[1]s --completion fish | source\n", c.name)
	if len(c.args) == 0 {
		fmt.Fprintf(&b, "complete -c %s -f\n", c.name)
	}
	for _, f := range c.flags {
		kind := "-l"
		if len(f.name) == 1 {
			kind = "-s"
		}
		fmt.Fprintf(&b, "complete -c %s %s %s", c.name, kind, f.name)
		switch {
		case f.value == "":
		case f.files:
			b.WriteString(" -r -F")
		default:
			fmt.Fprintf(&b, " -x -a '%s'", strings.Join(f.words, " "))
		}
		fmt.Fprintf(&b, " -d '%s'\n", fishQuoted.Replace(f.does))
	}
	if len(c.args) > 0 {
		fmt.Fprintf(&b, "complete -c %s -a '%s'\n", c.name, strings.Join(c.args, " "))
	}
	return b.String()
}
