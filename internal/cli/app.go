package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/soft"
)

// An App is one run of a command: its flags, its output and its driver.
type App struct {
	*Output
	Flags   *flag.FlagSet
	Driver  *cu.Driver
	Timeout time.Duration
	Result  Fields       // what the result line holds beside ok and the steps
	Check   func() error // checks the command's own flags; may be nil
	Quiet   bool         // Check sets it to print for people only what Print prints
	Early   func() error // checks what needs no driver, before one is opened; may be nil
	Args    string       // what may follow the flags, for the help; most commands take nothing

	// What completion offers for the values of flags whose usage does not list them, and
	// for what follows the flags.
	Values    map[string][]string
	ArgValues []string

	name, purpose string
	driver        string
	json, version bool
	completion    shell
	stdout        io.Writer
	stderr        io.Writer
	lines         *queue // to stdout
	ending        *ending
}

// New returns a command of that name with the flags that all commands have.
func New(name, purpose string, stdout io.Writer) *App {
	a := &App{name: name, purpose: purpose, stdout: stdout, Result: Fields{}, ending: newEnding()}
	a.Flags = flag.NewFlagSet(name, flag.ContinueOnError)
	a.Flags.SetOutput(io.Discard)
	a.Flags.StringVar(&a.driver, "driver", DefaultDriver(), "driver to use, `auto|cuda|soft`; auto uses the software driver only if there is no GPU")
	a.Flags.BoolVar(&a.json, "json", false, "print one JSON object per line; the last has \"event\":\"result\"")
	a.Flags.DurationVar(&a.Timeout, "timeout", 30*time.Second, "wait no longer than this `duration` for a peer, and for each step of a conversation")
	a.Flags.BoolVar(&a.version, "version", false, "print the version and exit")
	a.Flags.Var(&a.completion, "completion", "print the completion script for a shell, `bash|zsh|fish`, and exit")
	return a
}

// Parse reads and checks args without a driver. The error is [flag.ErrHelp] or one
// of usage.
func (a *App) Parse(args []string) error {
	err := a.Flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return flag.ErrHelp
	case err != nil:
		return Usagef("%s; see %s -h", a.wanted(err), a.name)
	case a.version || a.completion != "":
		return nil
	}
	if err = a.check(); err == nil && a.Check != nil {
		err = a.Check()
	}
	return err
}

// wanted returns package flag's error for a value that it could not read, and adds what
// the flag takes.
func (a *App) wanted(err error) string {
	text := err.Error()
	a.Flags.VisitAll(func(f *flag.Flag) {
		g, ok := f.Value.(flag.Getter)
		if !ok {
			return // it says so itself
		}
		want := "want a whole number"
		switch g.Get().(type) {
		case time.Duration:
			want = "want a duration such as 500ms, 30s or 2m"
		case uint64:
			want = "want a whole number, 0 or more"
		case bool:
			want = "want true or false"
		}
		text = strings.ReplaceAll(text, " -"+f.Name+": parse error", " -"+f.Name+": "+want)
	})
	return twoDashes.Replace(text)
}

// twoDashes makes package flag show flags with two dashes, as all documents do.
var twoDashes = strings.NewReplacer(" flag -", " flag --", " for -json", " for --json", "not defined: -", "not defined: --", "argument: -", "argument: --")

// Run parses args, opens the driver, runs body and returns the exit code. It prints an
// error to stderr on one line, or on several if a context was lost.
func (a *App) Run(args []string, stderr io.Writer, body func(context.Context) error) int {
	if err := checkDescriptors(needDescriptors); err != nil {
		fmt.Fprintf(stderr, "%s: %s\n", a.name, OneLine(err)) // without a timer, which needs a poller
		return ExitCode(err)
	}
	signals, stop := Notified()
	defer stop()
	err := a.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return a.only(stderr, a.help())
	case err == nil && a.version:
		return a.only(stderr, fmt.Sprintf("%s %s %s/%s\n", a.name, Version(), runtime.GOOS, runtime.GOARCH))
	case err == nil && a.completion != "":
		return a.only(stderr, a.completionScript())
	case err != nil:
		a.json = wantsJSON(args)
	}
	a.stderr = stderr
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	a.open(cancel)
	defer a.guarded(cancel, signals, stderr)()
	if err == nil {
		err = a.work(ctx, body)
	}
	return a.finish(stderr, err)
}

// only prints a text that is all that was asked for, and returns the exit code.
func (a *App) only(stderr io.Writer, text string) int {
	if _, err := io.WriteString(a.stdout, text); err != nil {
		fmt.Fprintf(stderr, "%s: writing the output: %s\n", a.name, OneLine(err))
		return ExitFailed
	}
	return ExitOK
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
	if !a.json && IsTerminal(a.stdout) && os.Getenv("TERM") != "dumb" {
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

// work runs body with a driver.
func (a *App) work(ctx context.Context, body func(context.Context) error) error {
	if a.Early != nil {
		if err := a.Early(); err != nil {
			return err
		}
	}
	if err := a.openDriver(); err != nil {
		return err
	}
	return body(ctx)
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
	if hint := advice(err); hint != "" {
		return fmt.Errorf("%w; %s", err, hint)
	}
	return err
}

// longFlag is how package flag begins the lines of a flag that has more than one letter.
var longFlag = regexp.MustCompile(`(?m)^  -([a-z][a-z-]+)`)

func (a *App) help() string {
	usage := strings.TrimSpace("[flags] " + a.Args)
	text := fmt.Sprintf("%s %s\n\nUsage: %s %s\n\n", a.name, a.purpose, a.name, usage)
	var flags strings.Builder
	a.Flags.SetOutput(&flags)
	a.Flags.PrintDefaults()
	return text + longFlag.ReplaceAllString(flags.String(), "  --$1") + `
Exit codes: 0 done and verified, or ended by a signal while serving; 1 failed;
2 usage; 3 this machine cannot; 4 timed out or the peer was lost.
SIGINT, SIGTERM and SIGHUP end the program in order; a second one ends it at once,
with 1. The same one within half a second, as from timeout(1), counts as one. A call
that hangs for longer than --timeout ends it at once, with 4. If the reader of its
output closes the pipe, as in "| head -1", it ends in order, with 1. It also ends with
1 if nobody reads its last lines within a second.
On a terminal, and nowhere else, one line shows the progress of long work.
GPUFD_TRACE=1 prints every driver call. GPUFD_DRIVER sets the default of --driver.
`
}

// check checks what flag parsing cannot.
func (a *App) check() error {
	switch {
	case a.Flags.NArg() > 0 && a.Args == "":
		return Usagef("unexpected argument %q; see %s -h", a.Flags.Arg(0), a.name)
	case a.Timeout <= 0:
		return Usagef("--timeout %s: want more than 0", a.Timeout)
	case a.driver != "auto" && a.driver != "cuda" && a.driver != "soft":
		return Usagef("--driver %q: want auto, cuda or soft", a.driver)
	}
	return nil
}

func (a *App) openDriver() error {
	err := a.Timed("driver", func() (err error) {
		a.Driver, err = OpenDriver(a.driver)
		return err
	})
	if err != nil {
		return err
	}
	a.Result["driver"] = a.Driver.Kind().String()
	a.Say("driver", Fields{"driver": a.Driver.Kind().String(), "cuda": a.Driver.Version()}, "Driver: %s", a.Driver)
	return nil
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
