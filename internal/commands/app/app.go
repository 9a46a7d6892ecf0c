// Package app is the frame of the commands: flags, completion, output as text or JSON, progress, and the
// end on a signal or when something hangs.
package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/soft"
	"github.com/gpufd/gpufd/internal/cli"
)

// An App is one run of a command: its flags, its output and its driver.
type App struct {
	*Output
	Command *cobra.Command // describes the flags and what may follow them; most commands take nothing
	Flags   *pflag.FlagSet // those of Command
	Driver  *cu.Driver
	calls   stopwatch // of the driver
	Timeout time.Duration
	Result  Fields       // what the result line holds beside ok and the steps
	Check   func() error // checks the command's own flags; may be nil
	Quiet   bool         // Check sets it to print for people only what Print prints
	Early   func() error // checks what needs no driver, before one is opened; may be nil
	Body    func(context.Context) error

	driver     string
	whyCPU     error // why the CPU has to fill or verify, or nil
	json       bool
	help       bool
	version    bool
	completion string
	stdout     io.Writer
	stderr     io.Writer
	lines      *queue // to stdout
	ending     *ending
}

// New returns a command of that name with the flags that all commands have.
func New(name, purpose string, stdout io.Writer) *App {
	a := &App{stdout: stdout, Result: Fields{}, ending: newEnding()}
	a.Command = &cobra.Command{
		Use: name + " [flags]", Long: name + " " + purpose, DisableFlagsInUseLine: true,
		Args: noArguments, ValidArgsFunction: cobra.NoFileCompletions, Run: func(*cobra.Command, []string) {},
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	a.Command.SetHelpTemplate(a.Command.HelpTemplate() + "\n" + Ending)
	a.Flags = a.Command.Flags()
	a.Flags.SetInterspersed(false)
	DriverFlag(a.Flags, &a.driver)
	a.Flags.BoolVar(&a.json, "json", false, "print one JSON object per line; the last has \"event\":\"result\"")
	a.Flags.DurationVar(&a.Timeout, "timeout", 30*time.Second, "wait no longer than this `duration` for a peer, and for each step of a conversation")
	a.Flags.BoolVar(&a.version, "version", false, "print the version and exit")
	a.Flags.BoolVar(&a.help, "help", false, "print this help and exit")
	Choice(a.Flags, &a.completion, "completion", "", "print the completion script for a shell, `bash|zsh|fish`, and exit", "bash", "zsh", "fish")
	return a
}

// Ending is the end of the help of every program with an [App].
const Ending = `Exit codes: 0 done and verified, or ended by a signal while serving; 1 failed;
2 usage; 3 this machine cannot; 4 timed out or the peer was lost.
SIGINT, SIGTERM and SIGHUP end the program in order; a second one ends it at once,
with 1. The same one within half a second, as from timeout(1), counts as one. A call
that hangs for longer than --timeout ends it at once, with 4. If the reader of its
output closes the pipe, as in "| head -1", it ends in order, with 1. It also ends with
1 if nobody reads its last lines within a second.
On a terminal, and nowhere else, one line shows the progress of long work.
GPUFD_TRACE=1 prints every driver call. GPUFD_DRIVER sets the default of --driver.
`

func noArguments(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return cli.Usagef("unexpected argument %q; see %s --help", args[0], c.Name())
	}
	return nil
}

// Parse reads and checks args without a driver. print prints what was asked for instead of the
// program's work, if that is its help, its version or a completion.
func (a *App) Parse(args []string) (print func() error, err error) {
	if len(args) > 0 && (args[0] == cobra.ShellCompRequestCmd || args[0] == cobra.ShellCompNoDescRequestCmd) {
		CompleteFlags(a.Command)
		a.Command.SetArgs(slices.Concat(args[:1], twoDashes(a.Flags, args[1:])))
		return a.Command.Execute, nil
	}
	if err := a.Command.ParseFlags(twoDashes(a.Flags, args)); err != nil {
		return nil, FlagError(a.Command, err)
	}
	switch {
	case a.help:
		return a.Command.Help, nil
	case a.version:
		return func() error {
			_, err := fmt.Fprintf(a.Command.OutOrStdout(), "%s %s %s/%s\n", a.Command.Name(), Version(), runtime.GOOS, runtime.GOARCH)
			return err
		}, nil
	case a.completion != "":
		return func() error { return WriteCompletion(a.Command.OutOrStdout(), a.Command, a.completion) }, nil
	}
	if err = a.Command.ValidateArgs(a.Flags.Args()); err == nil {
		err = CheckFlags(a.Command)
	}
	if err == nil && a.Check != nil {
		err = a.Check()
	}
	return nil, err
}

// Run parses args, opens the driver, runs Body and returns the exit code. It prints an
// error to stderr on one line, or on several if a context was lost.
func (a *App) Run(args []string, stderr io.Writer) int {
	if err := checkDescriptors(needDescriptors); err != nil {
		fmt.Fprintf(stderr, "%s: %s\n", a.Command.Name(), cli.OneLine(err)) // without a timer, which needs a poller
		return cli.ExitCode(err)
	}
	signals, stop := Notified()
	defer stop()
	print, err := a.Parse(args)
	if print != nil {
		return a.only(stderr, print)
	}
	if err != nil {
		a.json = wantsJSON(args)
	}
	a.stderr = stderr
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	a.open(cancel)
	defer a.guarded(cancel, signals, stderr)()
	if err == nil {
		err = a.work(ctx)
	}
	return a.finish(stderr, err)
}

// only prints a text that is all that was asked for, and returns the exit code.
func (a *App) only(stderr io.Writer, print func() error) int {
	var b bytes.Buffer
	a.Command.SetOut(&b)
	a.Command.SetErr(io.Discard)
	err := print()
	if err == nil {
		_, err = b.WriteTo(a.stdout)
	}
	if err != nil {
		fmt.Fprintf(stderr, "%s: writing the output: %s\n", a.Command.Name(), cli.OneLine(err))
		return cli.ExitFailed
	}
	return cli.ExitOK
}

// wantsJSON reports whether args ask for --json, even if another argument is wrong.
func wantsJSON(args []string) (wants bool) {
	for _, arg := range args {
		name, value, given := strings.Cut(arg, "=")
		if name != "-json" && name != "--json" {
			continue
		}
		on, err := strconv.ParseBool(value)
		wants = !given || on && err == nil
	}
	return wants
}

// open begins the output. When its reader has gone, the program ends in order.
func (a *App) open(cancel context.CancelCauseFunc) {
	a.Output = newOutput(nil, a.json)
	a.Output.quiet = a.Quiet
	if !a.json && ShowsProgress(a.stdout) {
		a.Output.columns = columnsOf(a.stdout)
	}
	a.Output.alive = a.ending.alive
	a.lines = newQueue(a.stdout, a.Output.notice, func(err error) {
		if errors.Is(err, syscall.EPIPE) {
			cancel(errNoReader)
		}
	})
	a.Output.w = a.lines
}

// guarded ends the program, until stop is called, even if something hangs.
func (a *App) guarded(cancel context.CancelCauseFunc, signals <-chan os.Signal, stderr io.Writer) (stop func()) {
	over, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		a.watch(signals, over, cancel, stderr)
	}()
	return func() {
		close(over)
		<-watched
	}
}

// work runs Body with a driver.
func (a *App) work(ctx context.Context) error {
	if a.Early != nil {
		if err := a.Early(); err != nil {
			return err
		}
	}
	err := a.Timed("driver", func() (err error) {
		a.Driver, err = cli.OpenDriver(a.driver, cu.WithHook(a.calls.hook))
		return err
	})
	if err != nil {
		return err
	}
	a.Result["driver"] = a.Driver.Kind().String()
	a.Say("driver", Fields{"driver": a.Driver.Kind().String(), "cuda": a.Driver.Version()}, "Driver: %s", a.Driver)
	return a.Body(ctx)
}

// advised returns err with what to do about it; of an interruption it returns only
// that. If the software driver knows why a context was lost, that comes first.
func advised(err error) error {
	if errors.Is(err, ErrInterrupted) {
		return ErrInterrupted
	}
	if errors.Is(err, cu.ErrContextLost) {
		if fault := soft.LastFault(); fault != nil {
			err = fmt.Errorf("%w\n%w", fault, err)
		}
	}
	if hint := cli.Advice(err); hint != "" {
		return fmt.Errorf("%w; %s", err, hint)
	}
	return err
}

// Version is the module's version, or the commit it was built from.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	version := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && (version == "" || version == "(devel)") {
			version = s.Value
		}
	}
	if version == "" {
		version = "(devel)"
	}
	return version
}
