// Commands writes man pages, or makes docs/commands.md anew: the help of each command in it comes from the commands'
// own descriptions, and the rest, such as the records of --json, is written by hand.
//
//	commands docs/commands.md
//	commands DIR    writes man pages into a directory
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/internal/commands/consumer"
	"github.com/gpufd/gpufd/internal/commands/gpufd"
	"github.com/gpufd/gpufd/internal/commands/launch"
	"github.com/gpufd/gpufd/internal/commands/producer"
	"github.com/gpufd/gpufd/internal/commands/ring"
)

func main() {
	// The help shows defaults, which must not depend on the user.
	for _, name := range []string{"GPUFD_DRIVER", "GPUFD_SOCKET", "NVIDIA_DRA_LOCAL_IPC_DIR", "XDG_RUNTIME_DIR", "TMPDIR"} {
		os.Unsetenv(name)
	}
	roots := []*cobra.Command{gpufd.Command()}
	for _, program := range []func(io.Writer) *app.App{ring.New, launch.New, consumer.New, producer.New} {
		roots = slices.Insert(roots, 0, program(io.Discard).Command)
	}
	for _, root := range roots {
		hideUser(root)
	}
	var err error
	if path := os.Args[1]; strings.HasSuffix(path, ".md") {
		err = writePage(path, roots)
	} else {
		err = writeMan(path, roots)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "commands:", err)
		os.Exit(1)
	}
}

// hideUser replaces this user's number in the sockets that flags have as their defaults.
func hideUser(c *cobra.Command) {
	own := strings.NewReplacer(fmt.Sprintf("/tmp/gpufd-%d/", os.Getuid()), "/tmp/gpufd-UID/")
	for _, flags := range []*pflag.FlagSet{c.Flags(), c.PersistentFlags()} {
		flags.VisitAll(func(f *pflag.Flag) { f.Usage, f.DefValue = own.Replace(f.Usage), own.Replace(f.DefValue) })
	}
	for _, sub := range c.Commands() {
		hideUser(sub)
	}
}

func writeMan(dir string, roots []*cobra.Command) error {
	for _, root := range roots {
		root.DisableAutoGenTag = true
		if err := doc.GenManTree(root, &doc.GenManHeader{Source: "gpufd", Manual: "gpufd"}, dir); err != nil {
			return err
		}
	}
	return nil
}

// writePage makes the page anew. What is written by hand is all but the list of contents, and the first block of each section.
func writePage(path string, roots []*cobra.Command) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	old := string(b)
	preface, _, _ := strings.Cut(old, "\n[")
	var contents, sections bytes.Buffer
	for _, root := range roots {
		if err := writeCommand(&contents, &sections, root, old); err != nil {
			return err
		}
	}
	_, common, _ := strings.Cut(old, "\n## Exit codes\n")
	before, rest, _ := strings.Cut(common, "```text\n")
	_, after, _ := strings.Cut(rest, "```\n")
	page := fmt.Sprintf("%s\n%s[exit codes](#exit-codes) · [environment](#environment) · [JSON](#json)\n%s\n## Exit codes\n%s```text\n%s```\n%s",
		preface, &contents, &sections, before, app.Ending, after)
	return os.WriteFile(path, []byte(page), 0o644)
}

// byHand returns what the page has behind the block of a command's section.
func byHand(page, name string) string {
	_, section, _ := strings.Cut(page, "\n## "+name+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	_, text, _ := strings.Cut(section, "\n```\n")
	return text
}

// writeCommand writes the section of a command, and those of its subcommands.
func writeCommand(contents, sections *bytes.Buffer, c *cobra.Command, old string) error {
	name := c.CommandPath()
	c.InitDefaultHelpFlag()
	c.Flags().Lookup("help").Hidden = true
	fmt.Fprintf(contents, "[%s](#%s) · ", name, strings.ReplaceAll(name, " ", "-"))
	if c.Long == "" {
		c.Long = c.Short
	}
	c.Long, c.Short, c.DisableAutoGenTag = "```text\n"+strings.TrimSpace(c.Long)+"\n```", "", true
	var text bytes.Buffer
	if err := doc.GenMarkdown(c, &text); err != nil {
		return err
	}
	page, _, _ := strings.Cut(text.String(), "### SEE ALSO")
	page, _, _ = strings.Cut(page, "### Options inherited")
	page = strings.NewReplacer("### Synopsis\n\n", "", "\n\n\n\n", "\n\n", "\n```\n\n```\n", "\n\n", "\n```\n\n### Options\n\n```\n", "\n\n").Replace(page)
	fmt.Fprintf(sections, "\n%s\n%s", strings.TrimSpace(page), byHand(old, name))
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "completion" {
			if err := writeCommand(contents, sections, sub, old); err != nil {
				return err
			}
		}
	}
	return nil
}
