package gpufd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/internal/sockets"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/sock"
)

func (p *program) lsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "ls", SuggestFor: []string{"list"}, Short: "List the names that are kept, and publishers of weights", Args: p.args(0, 0, "no arguments (ls lists everything; gpufd stat NAME describes one name)"),
		Long: `ls lists the publishers of weights (gpufd.weights.Publisher), and then the names that a keeper
keeps. It lists publishers in the default directory and at --socket. It waits for no keeper to be
started, 1 second for the answers of publishers, and 5 seconds for that of a keeper; --timeout
changes both.`,
		RunE: func(c *cobra.Command, _ []string) error {
			found := p.publishers(c.Context())
			p.listPublishers(found)
			err := p.listKept(c)
			switch {
			case !errors.Is(err, sock.ErrNoListener):
				return err
			case len(found) == 0:
				return fmt.Errorf("no publishers, no keeper: %s: %w", p.socket, sock.ErrNoListener)
			case p.socket == sockets.Keeper(), slices.ContainsFunc(found, func(x publisher) bool { return x.Socket == p.socket }):
				return nil
			}
			return err
		},
	}
}

// keeperAnswers is how long ls waits for a keeper's answer without --timeout.
const keeperAnswers = 5 * time.Second

// listKept lists what a keeper keeps that is there now.
func (p *program) listKept(c *cobra.Command) error {
	if !p.patient {
		p.timeout = keeperAnswers
	}
	ctx, cancel := p.within(c)
	defer cancel()
	k, err := keeper.Dial(ctx, p.socket)
	if err == nil {
		err = p.answers(ctx, k)
	}
	if err == nil {
		err = p.listNames(ctx, k)
	}
	return errors.Join(err, k.Close())
}

func (p *program) listNames(ctx context.Context, k *keeper.Client) error {
	names, err := k.List(ctx)
	if err != nil {
		return err
	}
	p.list(names)
	if p.json {
		return nil
	}
	st, err := k.Status(ctx)
	if err == nil && st.Pool != nil {
		p.say("%s", poolText(*st.Pool))
	}
	return err
}

func (p *program) list(names []api.Info) {
	if p.json {
		for _, n := range names {
			p.object(n)
		}
		return
	}
	w := tabwriter.NewWriter(p.out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tVERSION\tSTATE\tSIZE\tWHERE\tPARTS\tHOLDERS\tFREES")
	for _, n := range names {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%d\t%d\t%s\n", plain.Text(n.Name), n.Version, plain.Text(n.State), cli.Human(n.Bytes), where(n), len(n.Parts), len(api.Processes(n.Holders)), cli.Human(n.FreesBytes))
	}
	w.Flush()
}

// poolText describes the pool for parking.
func poolText(pool api.Pool) string {
	text := fmt.Sprintf("pool for gpufd park: %s, of which %s are free", cli.Human(pool.Bytes), cli.Human(pool.Free))
	if pool.Bytes < pool.Wanted {
		text += fmt.Sprintf("; %s were asked for", cli.Human(pool.Wanted))
	}
	if pool.Error != "" {
		text += ": " + plain.Text(pool.Error)
	}
	return text
}

// where says where the bytes of the current version are, if there is one.
func where(n api.Info) string {
	if len(n.Parts) == 0 {
		return "-"
	}
	parked := 0
	for _, p := range n.Parts {
		if p.Parked {
			parked++
		}
	}
	switch parked {
	case 0:
		return "device"
	case len(n.Parts):
		return "host"
	}
	return "both"
}
