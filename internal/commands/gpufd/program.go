// Package gpufd is the command gpufd, which keeps GPU memory that outlives its processes.
package gpufd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/internal/doctor"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/internal/sockets"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/keeper/server"
)

// storeCommand makes this program an fd store. The keeper starts it so.
const storeCommand = "fd-store"

// moverCommand makes this program a mover. The keeper starts it so.
const moverCommand = "keeper-mover"

// doctorChild makes this program a process of gpufd doctor, which starts it so.
const doctorChild = "doctor-child"

// Command describes the command and its subcommands for documents.
func Command() *cobra.Command { return newProgram(io.Discard, io.Discard, nil).root() }

// Main runs the command with these arguments, and returns its exit code.
func Main(args []string, stdout, stderr io.Writer) int {
	switch {
	case len(args) == 1 && args[0] == moverCommand:
		return runMover(stderr)
	case len(args) == 2 && args[0] == doctorChild:
		return cli.ExitCode(doctor.RunChild(func() (*cu.Driver, error) { return cli.OpenDriver(args[1]) }))
	case len(args) == 0 || args[0] != storeCommand:
		return run(args, stdout, stderr)
	}
	err := error(cli.Usagef("want the absolute path of the keeper's socket, with .store behind it; gpufd keeper starts this by itself"))
	if len(args) == 2 && filepath.IsAbs(args[1]) {
		err = server.RunStore(args[1])
	}
	if err != nil {
		fmt.Fprintln(stderr, "gpufd fd-store:", cli.OneLine(err))
	}
	return cli.ExitCode(err)
}

// runMover is the whole program of a mover.
func runMover(stderr io.Writer) int {
	err := keeper.RunMover(func(driver string) (*cu.Driver, error) { return cli.OpenDriver(driver) })
	if err != nil {
		fmt.Fprintln(stderr, "gpufd keeper-mover:", cli.OneLine(err))
	}
	return cli.ExitCode(err)
}

// A program is one run of gpufd: the flags of all commands, and where it prints.
type program struct {
	socket  string
	channel string // --socket of the commands of channel
	driver  string
	json    bool
	timeout time.Duration
	patient bool // --timeout was given
	named   bool // so was an argument: mostly a name
	stderr  io.Writer
	data    *output     // to stdout
	out     *output     // what is printed: data, or stderr if stdout gets what is kept
	shown   *app.Output // on stderr, for progress
	command string
	result  app.Fields // of the last line of --json, if the command has one
	told    bool       // the last line has the result even if there is an error

	hasty    atomic.Pointer[string] // what to say if a signal ends the command, which then has endsWithin; nil: as long as it takes
	finished sync.Once
}

func newProgram(stdout, stderr io.Writer, failed func(error)) *program {
	p := &program{stderr: stderr, command: "gpufd", data: &output{w: stdout, failed: failed}}
	p.out = p.data
	p.shown = app.NewOutput(stderr, false)
	return p
}

// socketEnv holds the default of --socket.
const socketEnv = "GPUFD_SOCKET"

// run is the whole program, and returns the exit code. A signal, or an output that fails,
// ends the command in order; a second signal ends the program at once.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	p := newProgram(stdout, stderr, cancel)
	signals, stop := app.Notified()
	defer stop()
	over := make(chan struct{})
	defer close(over)
	go p.end(ctx, signals, over, cancel, stderr)
	root := p.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, app.ErrInterrupted)) {
		err = p.cause(ctx)
	}
	if _, _, unfound := root.Find(args); unfound != nil {
		flags := root.PersistentFlags()
		flags.ParseErrorsAllowlist.UnknownFlags = true
		flags.SetInterspersed(false)
		_ = flags.Parse(args)
		err = unknown(root, flags.Arg(0))
	}
	p.json = p.json || slices.Contains(args, "--json") // even if a flag before it is wrong
	code := cli.ExitFailed
	p.finished.Do(func() { code = p.finish(err, stderr) })
	return code
}

// cause returns why ctx was cancelled.
func (p *program) cause(ctx context.Context) error {
	err := context.Cause(ctx)
	if text := p.hasty.Load(); text != nil && errors.Is(err, app.ErrInterrupted) {
		return cli.Codef(cli.ExitFailed, "%s", *text)
	}
	return err
}

// unknown returns the error of a subcommand that is not there, with the names that are like it.
func unknown(c *cobra.Command, name string) error {
	c.SuggestionsMinimumDistance = min(2, len(name)/2) // else ls is like put
	text := fmt.Sprintf("unknown command %q", name)
	if like := c.SuggestionsFor(name); len(like) > 0 {
		text += " (did you mean " + strings.Join(like, " or ") + "?)"
	}
	return cli.Usagef("%s; see %s --help", text, c.CommandPath())
}

// endsWithin is how long a hasty command may take to end in order: a call of the driver cannot be
// interrupted, and takes seconds where memory is large.
const endsWithin = 300 * time.Millisecond

// end ends the command when a signal comes, and the program when a second one comes, or when a
// hasty command does not end, until over is closed.
func (p *program) end(ctx context.Context, signals <-chan os.Signal, over <-chan struct{}, cancel context.CancelCauseFunc, stderr io.Writer) {
	var came app.Signals
	var late <-chan time.Time
	for {
		select {
		case <-over:
			return
		case s := <-signals:
			if came.Again(s, time.Now()) {
				fmt.Fprintf(stderr, "%s: %s came a second time: ended at once\n", p.command, s)
				os.Exit(cli.ExitFailed)
			}
			cancel(app.ErrInterrupted)
			if late == nil && p.hasty.Load() != nil {
				late = time.After(endsWithin)
			}
		case <-late:
			p.finished.Do(func() { os.Exit(p.finish(p.cause(ctx), stderr)) })
		}
	}
}

// finish prints what became of the command.
func (p *program) finish(err error, stderr io.Writer) int {
	if p.json && err == nil && p.result != nil {
		p.result["event"], p.result["ok"], p.result["exit"] = "result", true, cli.ExitOK
		p.object(p.result)
	}
	p.shown.Settle()
	if lost := p.out.failure(); lost != nil && !errors.Is(err, lost) {
		err = errors.Join(lost, err)
	}
	if err == nil {
		return cli.ExitOK
	}
	code, text := exitCode(err), p.explain(err)
	if p.json {
		fields := app.Fields{}
		if p.told {
			fields = p.result
		}
		fields["event"], fields["ok"], fields["exit"], fields["error"] = "result", false, code, errorFields(err, text)
		p.object(fields)
	}
	fmt.Fprintf(stderr, "%s: %s\n", p.command, text)
	return code
}

// object prints a line of JSON.
func (p *program) object(v any) {
	text, err := json.Marshal(v)
	if err != nil {
		text, _ = json.Marshal(app.Fields{"error": app.Fields{"message": err.Error()}})
	}
	fmt.Fprintf(p.out, "%s\n", plain.JSON(text))
}

// say prints a line for people.
func (p *program) say(format string, a ...any) {
	if !p.json {
		p.shown.Settle()
		fmt.Fprintln(p.out, plain.Text(fmt.Sprintf(format, a...)))
	}
}

func (p *program) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "gpufd",
		Short: "Keep GPU memory that outlives its processes",
		Long: `gpufd keeps GPU memory alive when the processes that use it end. An inference
server that restarts gets its weights from a keeper and need not load them again.

  gpufd keeper &                      # keeps descriptors; needs no GPU
  gpufd put llama model.safetensors   # loads the file into GPU memory, and exits
  gpufd get llama --verify            # attaches, and computes the digest

Exit codes: 0 done and verified, or ended by a signal while serving; 1 failed;
2 usage; 3 this machine cannot; 4 timed out or the peer was lost.

docs/README.md in gpufd's sources lists how-tos: PyTorch, transformers, vLLM, SGLang,
GStreamer, containers, pods, systemd.`,
		Version:       app.Version(),
		SilenceErrors: true, SilenceUsage: true, DisableSuggestions: true, // unknown makes them
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			p.command = c.CommandPath()
			return p.check(c)
		},
	}
	root.SetOut(p.out) // before cobra makes its command completion, which asks once
	root.SetErr(p.stderr)
	root.SetVersionTemplate("gpufd {{.Version}}\n")
	f := root.PersistentFlags()
	f.StringVar(&p.socket, "socket", os.Getenv(socketEnv), "the keeper's socket; the default is "+socketEnv+", or else "+sockets.Keeper())
	f.BoolVar(&p.json, "json", false, "print JSON objects, one per line")
	f.DurationVar(&p.timeout, "timeout", 30*time.Second, "longest time to wait for other processes, and for free memory")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		p.command = c.CommandPath()
		return app.FlagError(c, err)
	})
	root.AddCommand(p.keeperCommand(), p.putCommand(), p.getCommand(), p.lsCommand(), p.statCommand(), p.rmCommand(),
		p.drainCommand(), p.parkCommand(), p.unparkCommand(), p.quarantineCommand(), p.watchCommand(), p.channelCommand(), p.doctorCommand(), p.versionCommand())
	p.completions(root)
	refuseUnknown(root)
	return root
}

// refuseUnknown makes help and completion fail for unknown commands; cobra's succeed.
func refuseUnknown(root *cobra.Command) {
	root.SetHelpCommand(&cobra.Command{
		Use: "help [COMMAND]", Short: "Help about a command",
		RunE: func(_ *cobra.Command, args []string) error {
			c, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return unknown(c, args[len(args)-max(1, len(rest))])
			}
			c.InitDefaultHelpFlag()
			return c.Help()
		},
	})
	root.InitDefaultCompletionCmd()
	completeAlone(root)
	completion, _, _ := root.Find([]string{"completion"})
	group(completion, "a shell: bash, zsh, fish or powershell")
}

// group makes c fail without one of its subcommands, which want lists.
func group(c *cobra.Command, want string) {
	c.Args = cobra.ArbitraryArgs
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknown(c, args[0])
		}
		return cli.Usagef("want %s: none was given; see %s --help", want, c.CommandPath())
	}
}

// check checks the flags of all commands.
func (p *program) check(c *cobra.Command) error {
	switch {
	case c.Flags().Changed("socket") && c.Flag("socket").Value.String() == "":
		return cli.Usagef("--socket: want a path, and got an empty one")
	case p.socket == "":
		p.socket = sockets.Keeper()
	}
	if c.HasParent() && c.Parent().Name() == "channel" {
		p.socket = p.channel
	}
	p.patient = c.Flags().Changed("timeout")
	p.shown = app.NewOutput(p.stderr, !p.json && app.ShowsProgress(p.stderr))
	return app.CheckFlags(c)
}

// args returns a check of the number of arguments, whose error says what they are.
func (p *program) args(least, most int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		p.command, p.named = c.CommandPath(), len(args) > 0
		if len(args) < least || most >= 0 && len(args) > most {
			return cli.Usagef("want %s: %s given; see %s --help", what, app.Were(len(args)), c.CommandPath())
		}
		if slices.Contains(args, "") { // of a variable of a script that is not set
			return cli.Usagef("want %s: an empty one was given; see %s --help", what, c.CommandPath())
		}
		return nil
	}
}

// open opens the driver.
func (p *program) open() (*cu.Driver, error) { return cli.OpenDriver(p.driver) }

func (p *program) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: p.args(0, 0, "no arguments"),
		RunE: func(*cobra.Command, []string) error {
			if p.json {
				p.object(app.Fields{"version": app.Version()})
			}
			p.say("gpufd %s", app.Version())
			return nil
		},
	}
}
