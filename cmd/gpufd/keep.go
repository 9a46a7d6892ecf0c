package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/sock"
)

// defaultSocket is where the keeper listens, and is looked for, unless somebody says so.
func defaultSocket() string { return filepath.Join(filepath.Dir(cli.DefaultSocket()), "keeper.sock") }

func (p *program) keeperCommand() *cobra.Command {
	var policy, metrics string
	var takeOver bool
	opts := keeper.Options{Version: cli.Version()}
	cmd := &cobra.Command{
		Use:   "keeper",
		Short: "Keep GPU memory for others, until a signal comes",
		Long: `keeper holds descriptors of GPU memory and hands them to readers. It uses no GPU, and
neither does the fd store, a process of its own that it starts: there the descriptors
survive this one. A keeper that is started again, after a crash too, goes on where the
last one was. gpufd rm and gpufd drain free memory; ending both processes does, too.

A policy is a file of JSON: who may read, write and remove which names, and how much they
may keep. Without one this user may, and nobody else. See docs/keeper.md.`,
		Args: p.args(0, 0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			opts.Socket, opts.Metrics, opts.Timeout = p.socket, metrics, p.timeout
			opts.Log = func(line string) { fmt.Fprintf(os.Stderr, "%s: %s\n", p.command, line) }
			return p.keep(c.Context(), opts, policy, takeOver)
		},
	}
	f := cmd.Flags()
	f.StringVar(&policy, "policy", "", "a `file` that says who may do what")
	f.StringVar(&metrics, "metrics", "", "the `address` of an HTTP server of metrics for Prometheus, such as 127.0.0.1:9400")
	f.DurationVar(&opts.Grace, "grace", time.Minute, "how long retired versions wait for readers of before a restart")
	f.BoolVar(&takeOver, "take-over", false, "end the keeper that has the socket, and go on in its place")
	return cmd
}

func (p *program) keep(ctx context.Context, opts keeper.Options, policy string, takeOver bool) (err error) {
	if policy != "" {
		if opts.Policy, err = keeper.ReadPolicy(policy); err != nil {
			return cli.Usagef("--policy: %w", err)
		}
	}
	if opts.Socket == defaultSocket() {
		if err := cli.MakeDefaultDir(cli.DefaultSocket()); err != nil {
			return err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if opts.Socket, err = filepath.Abs(opts.Socket); err != nil { // the fd store runs in /
		return err
	}
	opts.Store = []string{self, storeCommand}
	s, err := p.openKeeper(ctx, opts, takeOver)
	if err != nil {
		return err
	}
	st := s.Status()
	if p.json {
		p.result = cli.Fields{}
		p.object(cli.Fields{"event": "serving", "socket": opts.Socket, "pid": st.PID, "store_pid": st.Store, "names": st.Names})
	}
	p.say("Keeping %s at %s; the fd store is process %d", cli.Count(st.Names, "name"), opts.Socket, st.Store)
	select {
	case <-ctx.Done():
		p.say("Ending; what is kept stays in the fd store, process %d", st.Store)
	case <-s.Done():
		err = s.Err()
	}
	if errors.Is(err, keeper.ErrYielded) {
		p.say("Another keeper has taken over")
		err = nil
	}
	return errors.Join(err, s.Close())
}

// openKeeper starts the keeper, in the place of another one if that is wanted.
func (p *program) openKeeper(ctx context.Context, opts keeper.Options, takeOver bool) (*keeper.Server, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	if takeOver {
		return keeper.TakeOver(ctx, opts)
	}
	s, err := keeper.Open(ctx, opts)
	if errors.Is(err, keeper.ErrBusy) || errors.Is(err, sock.ErrInUse) {
		return nil, fmt.Errorf("%w; --take-over ends it and goes on in its place", err)
	}
	return s, err
}
