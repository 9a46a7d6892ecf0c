package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/vmm"
)

type getFlags struct {
	part   int
	output string
	all    bool
	verify bool
	hold   time.Duration
	labels []string
}

func (p *program) getCommand() *cobra.Command {
	var f getFlags
	cmd := &cobra.Command{
		Use:   "get NAME (-o FILE | --all -o DIR | --verify | --hold D)",
		Short: "Attach to what is kept: write it to files, verify it, or hold it",
		Long: `get attaches to the current version of NAME. With -o it writes a part to a file, with
--all every part to a directory: tensors as safetensors, all else as it was. --verify
computes the digest of every part; a part that is not what its writer said is reported to
the keeper, which then serves it no more if this user may write the name. --hold keeps the
memory mapped for so long.`,
		Args: p.args(1, 1, "a name"),
		RunE: func(c *cobra.Command, args []string) error { return p.get(c, args[0], f) },
	}
	fl := cmd.Flags()
	fl.IntVar(&f.part, "part", -1, "the `part` to take; the default is the only one, or all")
	fl.StringVarP(&f.output, "output", "o", "", "the `file` to write, or the directory with --all")
	fl.BoolVar(&f.all, "all", false, "take all parts")
	fl.BoolVar(&f.verify, "verify", false, "compute digests, and compare them")
	fl.DurationVar(&f.hold, "hold", 0, "keep the memory mapped for so `long`")
	fl.StringArrayVar(&f.labels, "label", nil, "take only a version with this label `K=V`")
	p.driverFlag(cmd)
	return cmd
}

func (f *getFlags) check() error {
	switch {
	case f.output == "" && !f.verify && f.hold == 0:
		return cli.Usagef("want -o FILE, --verify or --hold")
	case f.all && f.part >= 0:
		return cli.Usagef("want --part or --all, not both")
	case f.all && f.output == "":
		return cli.Usagef("--all wants -o DIR")
	case f.hold < 0 || f.part < -1:
		return cli.Usagef("--hold and --part want 0 or more")
	}
	return nil
}

func (p *program) get(c *cobra.Command, name string, f getFlags) error {
	if err := f.check(); err != nil {
		return err
	}
	labels, err := parseLabels(f.labels)
	if err != nil {
		return err
	}
	ctx, cancel := p.within(c)
	defer cancel()
	k, err := p.dial(ctx)
	if err != nil {
		return err
	}
	defer k.Close()
	drv, err := p.open()
	if err != nil {
		return err
	}
	parts, err := keeper.Attach(ctx, drv, k, name, keeper.Want{Part: f.part, Labels: labels})
	if err != nil {
		return err
	}
	defer func() {
		for _, part := range parts {
			_ = part.Close()
		}
	}()
	return p.use(c.Context(), k, parts, f)
}

func parseLabels(texts []string) (map[string]string, error) {
	f := putFlags{labels: texts, expect: -1}
	want, err := f.request("", []source{{}}, 0)
	return want.Labels, err
}

// use does with the parts what the flags say.
func (p *program) use(ctx context.Context, k *keeper.Client, parts []*keeper.Attached, f getFlags) error {
	p.result = cli.Fields{"name": parts[0].Data.Name, "version": parts[0].Data.Version, "parts": len(parts)}
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
	if f.hold > 0 {
		p.say("Holding %s, version %d, for %s", parts[0].Data.Name, parts[0].Data.Version, f.hold)
		select {
		case <-ctx.Done():
		case <-time.After(f.hold):
		}
	}
	return nil
}

// verify compares digests, and reports what is wrong.
func (p *program) verify(ctx context.Context, k *keeper.Client, parts []*keeper.Attached) error {
	for _, part := range parts {
		got, err := part.Digest(ctx)
		if err != nil {
			return err
		}
		d := part.Data
		if got == d.Digest {
			p.say("%s, version %d, part %d: %s, as its writer said", d.Name, d.Version, d.Part, got)
			continue
		}
		why := fmt.Sprintf("its digest is %s, and was %s", got, d.Digest)
		counted, err := k.Report(ctx, d.Name, d.Version, d.Part, "damaged", why)
		what := "the keeper serves it no more"
		if !counted {
			what = "the keeper was told, and does not go by this user's word"
		}
		if err != nil {
			what = fmt.Sprintf("telling the keeper: %v", err)
		}
		return cli.Codef(cli.ExitFailed, "%s, version %d, part %d is damaged: %s; %s", d.Name, d.Version, d.Part, why, what)
	}
	p.result["verified"] = true
	return nil
}

// write writes the parts to files.
func (p *program) write(ctx context.Context, parts []*keeper.Attached, f getFlags) error {
	if !f.all && len(parts) > 1 {
		return cli.Usagef("%s has %d parts: want --part I, or --all -o DIR", parts[0].Data.Name, len(parts))
	}
	if !f.all {
		return p.writePart(ctx, parts[0], f.output)
	}
	if err := os.MkdirAll(f.output, 0o777); err != nil {
		return err
	}
	for _, part := range parts {
		t, err := tableOf(part.Data)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("part-%d", part.Data.Part)
		if t.Format == formatTensors {
			name += ".safetensors"
		}
		if err := p.writePart(ctx, part, filepath.Join(f.output, name)); err != nil {
			return err
		}
	}
	return nil
}

// tableOf reads a part's table; memory of another writer has bytes.
func tableOf(d keeper.Data) (t table, err error) {
	if len(d.Table) == 0 {
		return table{Format: formatBytes}, nil
	}
	if err := json.Unmarshal(d.Table, &t); err != nil {
		return t, fmt.Errorf("the table of %s: %w", d.Name, err)
	}
	return t, nil
}

// writePart writes a part to a file, which appears when it is whole.
func (p *program) writePart(ctx context.Context, part *keeper.Attached, path string) (err error) {
	t, err := tableOf(part.Data)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	buf := part.Buffer()
	o := vmm.TransferOptions{OnProgress: p.progress()}
	if t.Format == formatTensors && t.Tensors != nil {
		err = t.Tensors.Write(ctx, f, buf, o)
	} else {
		err = buf.Store(ctx, []vmm.Segment{{File: f, Size: buf.Size()}}, o)
	}
	if err == nil {
		err = errors.Join(f.Chmod(0o644), os.Rename(f.Name(), path))
	}
	if err == nil {
		p.say("%s, version %d, part %d: written to %s", part.Data.Name, part.Data.Version, part.Data.Part, path)
	}
	return err
}

var (
	_ = cu.Soft
	_ = share.ReadOnly
)
