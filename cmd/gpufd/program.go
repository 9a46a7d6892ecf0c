package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/sock"
)

// A program is one run of gpufd: the flags that all commands have, and where it prints.
type program struct {
	socket  string
	driver  string
	json    bool
	timeout time.Duration
	out     io.Writer
	command string
	result  cli.Fields // of the last line of --json, if the command has one
}

// socketEnv has the default of --socket.
const socketEnv = "GPUFD_SOCKET"

// run is the whole program, and returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	p := &program{out: stdout, command: "gpufd"}
	root := p.root()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	err := root.ExecuteContext(ctx)
	if err != nil && ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = cli.ErrInterrupted
	}
	return p.finish(err, stderr)
}

// finish prints what became of the command.
func (p *program) finish(err error, stderr io.Writer) int {
	code := cli.ExitCode(err)
	if err == nil {
		if p.json && p.result != nil {
			p.result["event"], p.result["ok"], p.result["exit"] = "result", true, code
			p.object(p.result)
		}
		return code
	}
	if p.json {
		p.object(cli.Fields{"event": "result", "ok": false, "exit": code, "error": errorFields(err)})
	}
	text := strings.ReplaceAll(err.Error(), "\n", "\n  ")
	if errors.Is(err, sock.ErrNoListener) {
		text += "; start a keeper with gpufd keeper, or name its socket by --socket or " + socketEnv
	}
	fmt.Fprintf(stderr, "%s: %s\n", p.command, text)
	return code
}

// errorFields is an error in JSON.
func errorFields(err error) cli.Fields {
	f := cli.Fields{"message": err.Error()}
	var no *keeper.Error
	if errors.As(err, &no) {
		f["code"] = no.Code
		if len(no.Holders) > 0 {
			f["holders"] = no.Holders
		}
	}
	return f
}

// object prints a line of JSON.
func (p *program) object(v any) {
	text, err := json.Marshal(v)
	if err != nil {
		text, _ = json.Marshal(cli.Fields{"error": cli.Fields{"message": err.Error()}})
	}
	fmt.Fprintf(p.out, "%s\n", text)
}

// say prints a line for people.
func (p *program) say(format string, a ...any) {
	if !p.json {
		fmt.Fprintf(p.out, format+"\n", a...)
	}
}

func (p *program) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "gpufd",
		Short: "Keep GPU memory that outlives its processes",
		Long: `gpufd keeps GPU memory that outlives its processes: an inference server that
restarts takes its weights from a keeper, and does not load them again.

  gpufd keeper &                      # keeps descriptors; needs no GPU
  gpufd put llama model.safetensors   # loads the file into GPU memory, and leaves
  gpufd get llama --verify            # attaches, and computes the digest

Exit codes: 0 done and verified, or ended by a signal while serving; 1 failed;
2 usage; 3 this machine cannot; 4 timed out or the peer was lost.`,
		SilenceErrors: true, SilenceUsage: true,
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			p.command = c.CommandPath()
			return p.check()
		},
	}
	f := root.PersistentFlags()
	f.StringVar(&p.socket, "socket", os.Getenv(socketEnv), "the keeper's socket; the default is that of "+socketEnv+", else "+defaultSocket())
	f.BoolVar(&p.json, "json", false, "print JSON objects, one a line")
	f.DurationVar(&p.timeout, "timeout", 30*time.Second, "longest time to wait for others, and for room")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		p.command = c.CommandPath()
		return cli.Usagef("%w; see %s --help", err, c.CommandPath())
	})
	root.AddCommand(p.keeperCommand(), p.putCommand(), p.getCommand(), p.lsCommand(), p.statCommand(), p.rmCommand(),
		p.drainCommand(), p.watchCommand(), p.versionCommand())
	return root
}

// check is for the flags that all commands have.
func (p *program) check() error {
	if p.timeout <= 0 {
		return cli.Usagef("--timeout %s: want more than 0", p.timeout)
	}
	if p.socket == "" {
		p.socket = defaultSocket()
	}
	return nil
}

// args wants so many arguments, and says what they are.
func (p *program) args(least, most int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		p.command = c.CommandPath()
		if len(args) < least || most >= 0 && len(args) > most {
			return cli.Usagef("want %s; see %s --help", what, c.CommandPath())
		}
		return nil
	}
}

// within is the command's context with the bound of --timeout.
func (p *program) within(c *cobra.Command) (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.Context(), p.timeout)
}

// dial connects to the keeper.
func (p *program) dial(ctx context.Context) (*keeper.Client, error) {
	return keeper.Dial(ctx, p.socket)
}

// driverFlag adds --driver to a command that uses one.
func (p *program) driverFlag(c *cobra.Command) {
	c.Flags().StringVar(&p.driver, "driver", cli.DefaultDriver(), "driver to use, auto|cuda|soft; auto takes the software driver only where there is no GPU")
}

// open opens the driver.
func (p *program) open() (*cu.Driver, error) {
	if p.driver != "auto" && p.driver != "cuda" && p.driver != "soft" {
		return nil, cli.Usagef("--driver %q: want auto, cuda or soft", p.driver)
	}
	return cli.OpenDriver(p.driver)
}
