package gpufd

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/internal/sockets"
)

func (p *program) channelCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "channel",
		Short: "Pass frames from process to process through GPU memory",
		Long: `channel passes frames in order from one writer to its readers, through slots of GPU
memory that all of them have mapped. It needs no keeper: write listens on --socket itself.
Each writer takes a socket of its own; give a second one, and its readers, another --socket.

  gpufd channel write cam --slots 8 --slot-size 4MiB <frames
  gpufd channel read cam --policy drop-oldest >copy`,
	}
	group(cmd, "write or read")
	cmd.PersistentFlags().StringVar(&p.channel, "socket", channelSocket(), "the channel's socket, never a keeper's; its writer and its readers name the same")
	cmd.AddCommand(p.channelWriteCommand(), p.channelReadCommand())
	return cmd
}

// channelSocket returns the default path of a channel's socket: beside the keeper's default, which
// a channel must not take from a keeper that is started later.
func channelSocket() string { return filepath.Join(filepath.Dir(sockets.Keeper()), "channel.sock") }

// context opens the driver and a context of the named device. The caller closes both.
func (p *program) context(device string) (*cu.Context, error) {
	drv, err := p.open()
	if err != nil {
		return nil, err
	}
	dev, err := drv.FindDevice(device)
	if err != nil {
		return nil, err
	}
	return dev.PrimaryContext()
}

// tell prints a line for people, to stderr because frames may go to stdout.
func (p *program) tell(format string, a ...any) {
	if !p.json {
		fmt.Fprintln(p.stderr, plain.Text(fmt.Sprintf(format, a...)))
	}
}

// interrupted returns nil if a signal ended a command that serves until one comes.
func interrupted(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), app.ErrInterrupted) && (errors.Is(err, context.Canceled) || errors.Is(err, app.ErrInterrupted)) {
		return nil
	}
	return err
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
