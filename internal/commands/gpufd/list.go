package gpufd

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/keeper/api"
)

func (p *program) lsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "ls", SuggestFor: []string{"list"}, Short: "List the names that are kept", Args: p.args(0, 0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			return p.ask(c, func(ctx context.Context, k *keeper.Client) error {
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
			})
		},
	}
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
