// Commands writes docs/commands.md, or man pages, from the commands' own descriptions. Records
// of --json come from json.md, and what is common to all commands from rest.md.
//
//	commands >docs/commands.md
//	commands DIR    writes man pages into a directory
package main

import (
	"bytes"
	_ "embed"
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

//go:embed json.md
var records string

//go:embed rest.md
var rest string

const preface = `# Commands

This page is made by ` + "`make docs`" + ` from what the commands say of themselves; do not edit it.
After each command come the records that it prints with ` + "`--json`" + `: the event, then the members.

A shell completes flags after ` + "`source <(producer --completion bash)`" + ` (or zsh), and likewise for consumer, launch and
ring. For fish it is ` + "`producer --completion fish | source`" + `. For gpufd it is ` + "`source <(gpufd completion bash)`" + `, which
also completes the names that the keeper has. All have ` + "`--help`" + `. Producer, consumer, launch and ring take flags with one dash, too.
The keeper starts ` + "`gpufd fd-store SOCKET.store`" + ` by itself; it has no help, and nobody else needs it.

`

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
	if len(os.Args) > 1 {
		err = writeMan(os.Args[1], roots)
	} else {
		err = writePage(roots)
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

func writePage(roots []*cobra.Command) error {
	var contents, sections bytes.Buffer
	for _, root := range roots {
		if err := writeCommand(&contents, &sections, root); err != nil {
			return err
		}
	}
	_, err := fmt.Printf("%s%s[exit codes](#exit-codes) · [environment](#environment) · [JSON](#json)\n%s\n%s", preface, &contents, &sections, fmt.Sprintf(rest, app.Ending))
	return err
}

// writeCommand writes the section of a command, and those of its subcommands.
func writeCommand(contents, sections *bytes.Buffer, c *cobra.Command) error {
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
	fmt.Fprintf(sections, "\n%s\n", strings.TrimSpace(page))
	if _, list, found := strings.Cut("\n"+records, "\n## "+name+"\n\n"); found {
		list, _, _ = strings.Cut(list, "\n\n## ")
		fmt.Fprintf(sections, "\nWith `--json`:\n\n%s\n", strings.TrimSpace(list))
	}
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "completion" {
			if err := writeCommand(contents, sections, sub); err != nil {
				return err
			}
		}
	}
	return nil
}
