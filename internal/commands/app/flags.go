package app

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpufd/gpufd/internal/cli"
)

// twoDashes returns args with two dashes before each flag, up to the first argument that is none:
// -size 4MiB means --size 4MiB.
func twoDashes(flags *pflag.FlagSet, args []string) []string {
	args = slices.Clone(args)
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if len(arg) < 2 || arg[0] != '-' || arg == "--" {
			break
		}
		if arg[1] != '-' {
			args[i] = "-" + arg
		}
		name, _, given := strings.Cut(args[i][2:], "=")
		if name == "h" {
			args[i] = "--help"
		}
		if f := flags.Lookup(name); f != nil && f.NoOptDefVal == "" && !given {
			i++ // its value
		}
	}
	return args
}

// FlagError returns the error of usage for one of package pflag: it says what the flag takes.
func FlagError(c *cobra.Command, err error) error {
	text := err.Error()
	if bad := (*pflag.InvalidValueError)(nil); errors.As(err, &bad) {
		f := bad.GetFlag()
		want, known := map[string]string{
			"duration": "a duration such as 500ms, 30s or 2m", "int": "a whole number of 64 bits", "uint64": "a whole number, 0 or more", "uint32": "a whole number of 32 bits",
			"float64": "a number", "bool": "true or false",
		}[f.Value.Type()]
		if known {
			text = fmt.Sprintf("--%s %q: want %s", f.Name, bad.GetValue(), want)
		} else {
			text = fmt.Sprintf("--%s %q: %v", f.Name, bad.GetValue(), bad.Unwrap())
		}
	}
	return cli.Usagef("%s; see %s --help", text, c.CommandPath())
}

// A choice is a flag that takes one of a few words.
type choice struct {
	value *string
	words []string
}

// Choice adds a flag to flags that takes one of words.
func Choice(flags *pflag.FlagSet, p *string, name, value, usage string, words ...string) {
	*p = value
	flags.Var(&choice{p, words}, name, usage)
}

// Set takes one of the words.
func (c *choice) Set(s string) error {
	if !slices.Contains(c.words, s) {
		return fmt.Errorf("want %s", Listed(c.words, "or"))
	}
	*c.value = s
	return nil
}

// String returns the word.
func (c *choice) String() string { return *c.value }

// Type names the type for package pflag.
func (c *choice) Type() string { return "string" }

// DriverFlag adds --driver.
func DriverFlag(flags *pflag.FlagSet, p *string) {
	Choice(flags, p, "driver", cli.DefaultDriver(), "driver to use, `auto|cuda|soft`; auto uses the software driver only if there is no GPU", "auto", "cuda", "soft")
}

// CheckFlags checks the flags of c that several programs have, as far as parsing cannot.
func CheckFlags(c *cobra.Command) error {
	if f := c.Flags().Lookup("driver"); f != nil && f.Value.Set(f.Value.String()) != nil { // of the environment
		return cli.Usagef("--driver %q: want auto, cuda or soft", f.Value)
	}
	if t, err := c.Flags().GetDuration("timeout"); err == nil && t <= 0 {
		return cli.Usagef("--timeout %s: want more than 0", t)
	}
	return nil
}

// Listed joins words as a sentence does: "a, b or c".
func Listed(words []string, last string) string {
	n := len(words) - 1
	if n < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:n], ", ") + " " + last + " " + words[n]
}

// Were returns how many there were, for an error: "none was", "1 was", "2 were".
func Were(n int) string {
	switch n {
	case 0:
		return "none was"
	case 1:
		return "1 was"
	}
	return fmt.Sprintf("%d were", n)
}
