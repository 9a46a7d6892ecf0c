package gpufd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/sock"
)

// errNoAnswer says that a keeper's socket is there, but nobody answers.
var errNoAnswer = errors.New("the keeper does not answer")

// within returns the command's context, bounded by --timeout.
func (p *program) within(c *cobra.Command) (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.Context(), p.timeout)
}

// A keeper that is not there may have been started just before. So a command looks for it for
// keeperComes, or for --timeout if that is shorter, or given.
const (
	keeperComes = 5 * time.Second
	dialPause   = 20 * time.Millisecond
)

// find connects to the keeper, if need be once it is there, and says soon that it waits.
func (p *program) find(ctx context.Context) (*keeper.Client, error) {
	patience := min(keeperComes, p.timeout)
	if p.patient {
		patience = p.timeout
	}
	defer p.waiting("a keeper", patience, "gpufd keeper starts one")()
	late := time.NewTimer(patience)
	defer late.Stop()
	var missing error
	for {
		k, err := keeper.Dial(ctx, p.socket)
		switch {
		case err == nil:
			return k, nil
		case missing != nil && errors.Is(err, context.DeadlineExceeded): // which came while it dialled
		case !errors.Is(err, sock.ErrNoListener), !p.mayListen():
			return nil, err
		default:
			missing = err
		}
		select {
		case <-time.After(dialPause):
			continue
		case <-late.C:
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return nil, context.Cause(ctx)
			}
		}
		return nil, fmt.Errorf("no keeper came within %s: %w", patience, missing)
	}
}

// waiting prints soon what the command waits for, no longer than d, and what helps, unless the
// caller calls stop before.
func (p *program) waiting(whom string, d time.Duration, help string) (stop func()) {
	if p.json {
		return func() {}
	}
	return app.Waiting(p.stderr, fmt.Sprintf("Waiting for %s at %s, for %s at most (--timeout); %s", whom, p.socket, d, help))
}

// mayListen reports whether somebody may listen at the socket later: its directory is one, and
// nothing else has its name.
func (p *program) mayListen() bool {
	f, err := os.Stat(p.socket)
	if err != nil {
		return !errors.Is(err, syscall.ENOTDIR)
	}
	return f.Mode().Type() == os.ModeSocket
}

// dial connects to the keeper, and finds out whether it answers.
func (p *program) dial(ctx context.Context) (*keeper.Client, error) {
	k, err := p.find(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.answers(ctx, k); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

// answers returns nil if a keeper that listens answers.
func (p *program) answers(ctx context.Context, k *keeper.Client) error {
	_, err := k.Status(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return cli.Codef(cli.ExitPeer, "%w at %s within %s", errNoAnswer, p.socket, p.timeout)
	}
	return err
}

// connect is dial, within --timeout.
func (p *program) connect(ctx context.Context) (*keeper.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	return p.dial(ctx)
}

// ask runs f with a connection to the keeper, within --timeout.
func (p *program) ask(c *cobra.Command, f func(context.Context, *keeper.Client) error) error {
	ctx, cancel := p.within(c)
	defer cancel()
	k, err := p.dial(ctx)
	if err != nil {
		return err
	}
	return errors.Join(f(ctx, k), k.Close())
}
