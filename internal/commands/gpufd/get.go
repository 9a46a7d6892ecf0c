package gpufd

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/sock"
)

type getFlags struct {
	part   int
	output string
	all    bool
	verify bool
	hold   time.Duration
	labels []string
	uids   []uint32
	given  func(flag string) bool
}

func (p *program) getCommand() *cobra.Command {
	var f getFlags
	cmd := &cobra.Command{
		Use:   "get NAME [--part I] (-o FILE | --all -o DIR | --verify | --hold D)",
		Short: "Attach to what is kept: write it to files, verify it, or hold it",
		Long: `get attaches to the current version of NAME. -o writes a part to a file; --all -o writes
every part to a directory, as part-0, part-1…: tensors as safetensors, anything else as
bytes. A file appears once it is complete. - is standard output. --verify computes the digest of every part. If
one differs from what its writer said, get reports that part to the keeper, which stops
serving it if this user may write or remove the name. --hold keeps the memory mapped for
a time, or until a signal comes.`,
		Args: p.args(1, 1, "a name"),
		RunE: func(c *cobra.Command, args []string) error {
			f.given = c.Flags().Changed
			return p.get(c.Context(), args[0], f)
		},
	}
	fl := cmd.Flags()
	fl.IntVar(&f.part, "part", 0, "take only the `part` of this number")
	fl.StringVarP(&f.output, "output", "o", "", "the `file` to write, or - for standard output, or the directory with --all")
	fl.BoolVar(&f.all, "all", false, "write all parts to a directory")
	fl.BoolVar(&f.verify, "verify", false, "compute digests, and compare them")
	fl.DurationVar(&f.hold, "hold", 0, "keep the memory mapped for this `duration`")
	fl.StringArrayVar(&f.labels, "label", nil, "take only a version that was put with --label `K=V`")
	app.AllowUID(fl, &f.uids, "also take memory from a keeper of these `users`, who can put any bytes there")
	app.DriverFlag(cmd.Flags(), &p.driver)
	return cmd
}

func (f *getFlags) check() error {
	switch {
	case f.hold < 0 || f.part < 0:
		return cli.Usagef("--hold and --part want 0 or more")
	case f.all && f.given("part"):
		return cli.Usagef("want --part or --all, not both")
	case f.all && (f.output == "" || f.output == standard):
		return cli.Usagef("--all wants -o DIR")
	case f.output == "" && !f.verify && !f.given("hold"):
		return cli.Usagef("want -o FILE, --verify or --hold")
	}
	return f.checkOutput()
}

// checkOutput refuses an output that cannot be written, before get attaches.
func (f *getFlags) checkOutput() error {
	if f.output == "" || f.output == standard {
		return nil
	}
	if _, err := app.OutputPath(f.output); err != nil {
		return err
	}
	info, err := os.Stat(f.output)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case f.all && !info.IsDir():
		return cli.Usagef("%s is not a directory: --all wants one", f.output)
	case !f.all && info.IsDir():
		return cli.Usagef("%s is a directory: want -o FILE, or --all -o DIR", f.output)
	case !f.all && !info.Mode().IsRegular():
		return cli.Usagef("%s is not a regular file: want one, a new name, or - for standard output", f.output)
	}
	return nil
}

// want returns what to attach to.
func (f *getFlags) want() (keeper.Want, error) {
	labels, err := parseLabels(f.labels)
	w := keeper.Want{Labels: labels, Peers: sock.Policy{UIDs: f.uids}}
	if f.given("part") {
		w.Part = &f.part
	}
	return w, err
}

func (p *program) get(ctx context.Context, name string, f getFlags) error {
	if err := f.check(); err != nil {
		return err
	}
	if f.output == standard {
		if p.json {
			return cli.Usagef("--json wants -o FILE: standard output cannot take both")
		}
		p.out = &output{w: p.stderr, failed: p.data.failed} // standard output is for data
	}
	want, err := f.want()
	if err != nil {
		return err
	}
	drv, err := p.open()
	if err != nil {
		return err
	}
	step, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	k, err := p.dial(step)
	if err != nil {
		return err
	}
	defer k.Close()
	parts, err := keeper.Attach(step, drv, k, name, want)
	if err != nil {
		return err
	}
	err = p.use(ctx, k, parts, f)
	for _, part := range parts {
		err = errors.Join(err, part.Close())
	}
	return err
}

// use writes, verifies or holds the parts, as the flags say.
func (p *program) use(ctx context.Context, k *keeper.Client, parts []*keeper.Attached, f getFlags) error {
	p.result = app.Fields{"name": parts[0].Data.Name, "version": parts[0].Data.Version, "parts": len(parts)}
	if f.verify {
		if err := p.verify(ctx, k, parts); err != nil {
			return err
		}
	}
	if f.output != "" {
		if err := p.write(ctx, parts, f); err != nil {
			return err
		}
	}
	if f.given("hold") {
		p.hold(ctx, parts, f.hold)
	}
	return nil
}
