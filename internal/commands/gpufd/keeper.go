package gpufd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufd/gpufd/internal/cgroup"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/server"
	"github.com/gpufd/gpufd/sock"
)

func (p *program) keeperCommand() *cobra.Command {
	var policy, metrics string
	var takeOver, await, end bool
	var pool cli.Size
	opts := server.Options{Version: app.Version()}
	cmd := &cobra.Command{
		Use:        "keeper",
		SuggestFor: []string{"start", "serve"},
		Short:      "Keep GPU memory for others, until a signal comes",
		Long: `keeper holds descriptors of GPU memory and hands them to readers. It uses no GPU. It
starts another process, the fd store, which keeps the descriptors when the keeper ends and
uses no GPU either. A keeper that is started again, even after a crash, goes on where the
last one stopped. gpufd rm and gpufd drain free memory.

gpufd keeper --end ends both, says what was kept, and leaves no socket behind. Memory that a
process has mapped is free when that process has released it.

A policy is a JSON file that says who may read, write and remove which names, and how much
they may keep. Without one, only this user may do so. See docs/keeper.md.`,
		Args: p.args(0, 0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			if end {
				return p.endKeeper(c)
			}
			opts.Socket, opts.Metrics, opts.Timeout = p.socket, metrics, p.timeout
			opts.Log = func(line string) { fmt.Fprintf(os.Stderr, "%s: %s\n", p.command, plain.Text(line)) }
			self, err := os.Executable()
			if err != nil {
				return err
			}
			opts.Mover, opts.Pool, opts.PoolDriver = []string{self, moverCommand}, uint64(pool), p.driver
			if !await {
				opts.Store = []string{self, storeCommand}
			}
			return p.keep(c.Context(), opts, policy, takeOver)
		},
	}
	f := cmd.Flags()
	f.StringVar(&policy, "policy", "", "a `file` that says who may do what")
	f.StringVar(&metrics, "metrics", "", "serve metrics for Prometheus over HTTP at this `address`, such as 127.0.0.1:9400")
	f.DurationVar(&opts.Grace, "grace", time.Minute, "how long, after a restart, retired versions wait for the readers they had before")
	f.Var(&pool, "park-pool", "make this much memory of the host, for gpufd park; 16 GiB take about 4 seconds")
	app.DriverFlag(f, &p.driver)
	f.BoolVar(&takeOver, "take-over", false, "end the keeper that has the socket, and take its place")
	f.BoolVar(&end, "end", false, "end the keeper that has the socket, and its fd store, and give up what they keep")
	f.BoolVar(&await, "await-store", false, "start no fd store: wait for one that runs as gpufd fd-store SOCKET.store")
	return cmd
}

// endKeeper ends a keeper and its fd store, and says what they had.
func (p *program) endKeeper(c *cobra.Command) error {
	for _, other := range []string{"policy", "metrics", "grace", "park-pool", "driver", "take-over", "await-store"} {
		if c.Flags().Changed(other) {
			return cli.Usagef("want --end or --%s, not both", other)
		}
	}
	ctx, cancel := p.within(c)
	defer cancel()
	lost, err := server.End(ctx, p.socket)
	if err != nil {
		return err
	}
	p.result = app.Fields{"socket": p.socket, "lost": lostFields(lost)}
	p.say("The keeper at %s and its fd store have ended; %s lost", p.socket, map[bool]string{true: cli.Count(len(lost), "name") + " is", false: cli.Count(len(lost), "name") + " are"}[len(lost) == 1])
	for _, n := range lost {
		p.say("  %s", lostName(n))
	}
	return nil
}

// lostFields are what was lost, for JSON.
func lostFields(lost []api.Info) []app.Fields {
	all := []app.Fields{}
	for _, n := range lost {
		all = append(all, app.Fields{"name": n.Name, "version": n.Version, "bytes": bytesOf(n), "holders": len(api.Processes(holdersOf(n)))})
	}
	return all
}

// bytesOf counts all versions of a name.
func bytesOf(n api.Info) uint64 {
	sum := n.Bytes + n.ReservedBytes
	for _, r := range n.Retired {
		sum += r.Bytes
	}
	return sum
}

// lostName describes a name that was lost, for people.
func lostName(n api.Info) string {
	text := fmt.Sprintf("%s, version %d: %s", n.Name, n.Version, cli.Human(n.Bytes))
	for _, r := range n.Retired {
		text += fmt.Sprintf(", and %s of version %d", cli.Human(r.Bytes), r.Version)
	}
	if n.ReservedBytes > 0 {
		text += fmt.Sprintf(", and %s that was being written", cli.Human(n.ReservedBytes))
	}
	if held := keeper.PIDs(holdersOf(n)); held != "" {
		text += "; still mapped by " + held
	}
	return text
}

func (p *program) keep(ctx context.Context, opts server.Options, policy string, takeOver bool) (err error) {
	if opts.Grace < 0 {
		return cli.Usagef("--grace %s: want 0 or more", opts.Grace)
	}
	if policy != "" {
		if opts.Policy, err = server.ReadPolicy(policy); err != nil {
			return fmt.Errorf("--policy: %w", err)
		}
	}
	if filepath.Dir(opts.Socket) == filepath.Dir(cli.DefaultSocket()) {
		cli.MakeDefaultDir()
	}
	if opts.Socket, err = filepath.Abs(opts.Socket); err != nil { // the fd store runs in /
		return err
	}
	boundHeap()
	for s, err := p.openKeeper(ctx, opts, takeOver); ; s, err = p.takeBack(ctx, opts) {
		if s == nil || err != nil {
			return err
		}
		if err := p.serve(ctx, s, opts.Socket); !errors.Is(err, server.ErrYielded) {
			return err
		}
	}
}

// boundHeap limits the heap to five eighths of the memory that this process' control group may take:
// the rest is for memory that is not on the heap.
func boundHeap() {
	if limit, ok := cgroup.MemoryLimit(); ok && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(limit / 8 * 5))
	}
}

// serve serves until ctx is done or the keeper ends. The error is [server.ErrYielded] if
// another keeper takes over.
func (p *program) serve(ctx context.Context, s *server.Server, socket string) (err error) {
	st := s.Status()
	if p.json {
		p.result = app.Fields{}
		p.object(app.Fields{"event": "serving", "socket": socket, "pid": st.PID, "store_pid": st.Store, "names": st.Names, "pool": st.Pool})
	}
	p.say("Keeping %s at %s; the fd store is process %d", cli.Count(st.Names, "name"), socket, st.Store)
	if pool := st.Pool; pool != nil {
		p.say("%s", poolText(*pool))
	}
	select {
	case <-ctx.Done():
		p.say("Ending; the fd store, process %d, keeps the memory; gpufd keeper --end frees it", st.Store)
	case <-s.Done():
		if err = s.Err(); errors.Is(err, server.ErrEnded) {
			p.say("Ended by gpufd keeper --end")
			err = nil
		}
	}
	return errors.Join(err, s.Close())
}

// takeBack waits until the keeper that takes over serves, and then returns nil. If that one
// fails first, this process becomes the keeper again.
func (p *program) takeBack(ctx context.Context, opts server.Options) (*server.Server, error) {
	step, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	s, err := server.TakeBack(step, opts)
	switch {
	case ctx.Err() != nil:
		return nil, s.Close()
	case err != nil:
		return nil, err
	case s == nil:
		p.say("Another keeper has taken over")
	default:
		fmt.Fprintf(os.Stderr, "%s: the keeper that was taking over has failed: this one goes on\n", p.command)
	}
	return s, nil
}

// openKeeper starts the keeper; with takeOver, in the place of another one.
func (p *program) openKeeper(ctx context.Context, opts server.Options, takeOver bool) (*server.Server, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	if takeOver {
		return server.TakeOver(ctx, opts)
	}
	s, err := server.Open(ctx, opts)
	if errors.Is(err, server.ErrBusy) || errors.Is(err, sock.ErrListening) {
		return nil, fmt.Errorf("%w; to take its place, use --take-over", err)
	}
	return s, err
}
