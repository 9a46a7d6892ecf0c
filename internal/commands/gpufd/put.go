package gpufd

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/vmm"
)

type putFlags struct {
	device      string
	parts       []string
	transaction string
	of          int
	labels      []string
	expect      uint64
	given       func(flag string) bool
}

func (p *program) putCommand() *cobra.Command {
	var f putFlags
	cmd := &cobra.Command{
		Use:   "put NAME (FILE… | - | --part I@DEVICE=PATH…)",
		Short: "Load files into GPU memory, and hand it to the keeper",
		Long: `put loads files into GPU memory and hands the memory to the keeper, as the next version
of NAME. One or more safetensors files become one buffer with a table of its tensors. So does
a directory of them, by its index; without one, if it has one file or all shards of one model;
and so does an index (*.json). put goes by the content of a file that has another name. Files
of other kinds become bytes, one after the other; put does not take both together. - stands for
standard input. If a file changes while put reads it, put fails.

A version may have several parts, each on one device. Give a --part for each; or call put
several times with the same --transaction, and the number of all parts in --parts. The
last part commits the version; until then readers get the version before.

If the device has no room, put waits for --timeout. Loading may take longer than that, as
long as it makes progress, which a terminal shows on standard error. A signal ends put
within half a second. An incomplete transaction is given up after an hour, or after a
--timeout that was given.`,
		Args: p.args(1, -1, "a name, and files or --part"),
		RunE: func(c *cobra.Command, args []string) error {
			f.given = c.Flags().Changed
			return p.put(c.Context(), args[0], args[1:], f)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.device, "device", "0", "the device to load to, an ordinal or a UUID")
	fl.StringArrayVar(&f.parts, "part", nil, "load a file or directory to a device as part I of the version, `I@DEVICE=PATH`")
	fl.StringVar(&f.transaction, "transaction", "", "the `name` of a version that several calls put together")
	fl.IntVar(&f.of, "parts", 0, "number of parts of the version in all")
	fl.StringArrayVar(&f.labels, "label", nil, "label the version: `K=V` gives the key K the value V; may be given several times")
	fl.Uint64Var(&f.expect, "expect-version", 0, "put only if the current version is `V`; 0 is none")
	app.DriverFlag(cmd.Flags(), &p.driver)
	return cmd
}

// A source is a part's files.
type source struct {
	index  int
	device string
	paths  []string
}

// sources reads the parts from the command line.
func (f *putFlags) sources(files []string) ([]source, error) {
	switch {
	case len(files) > 1 && slices.Contains(files, standard):
		return nil, cli.Usagef("- is standard input: want it alone")
	case len(files) > 0 && len(f.parts) > 0:
		return nil, cli.Usagef("want files or --part, not both")
	case len(files) == 0 && len(f.parts) == 0:
		return nil, cli.Usagef("nothing to put: want files, or --part I@DEVICE=PATH; see gpufd put --help")
	case len(files) > 0:
		return []source{{0, f.device, files}}, nil
	case f.given("device"):
		return nil, cli.Usagef("want --device or --part, not both: a --part names its device")
	}
	var all []source
	seen := map[int]bool{}
	for _, text := range f.parts {
		at, path, ok := strings.Cut(text, "=")
		number, device, ok2 := strings.Cut(at, "@")
		i, err := strconv.Atoi(number)
		if !ok || !ok2 || err != nil || i < 0 || path == "" || device == "" {
			return nil, cli.Usagef("--part %q: want I@DEVICE=PATH, such as 0@0=model.safetensors", text)
		}
		if seen[i] {
			return nil, cli.Usagef("--part %d was given twice", i)
		}
		if path == standard && slices.ContainsFunc(all, func(s source) bool { return s.paths[0] == standard }) {
			return nil, cli.Usagef("- is standard input, which is for one part alone")
		}
		seen[i] = true
		all = append(all, source{i, device, []string{path}})
	}
	return all, nil
}

// request returns what to ask the keeper.
func (f *putFlags) request(name string, sources []source) (want keeper.Put, err error) {
	want = keeper.Put{Name: name, Parts: f.of, Transaction: f.transaction}
	if !f.given("parts") {
		want.Parts = len(sources)
	}
	switch {
	case want.Parts < 1:
		return want, cli.Usagef("--parts %d: want 1 or more", want.Parts)
	case f.transaction == "" && f.given("transaction"):
		return want, cli.Usagef("--transaction wants a name")
	case f.transaction == "" && want.Parts != len(sources):
		return want, cli.Usagef("--parts %d, but parts given here: %d; for the others, name a --transaction", want.Parts, len(sources))
	case f.transaction != "" && !f.given("parts"):
		return want, cli.Usagef("--transaction wants --parts: how many parts the version has in all")
	}
	for _, s := range sources {
		if s.index >= want.Parts {
			return want, cli.Usagef("part %d of %d: parts count from 0", s.index, want.Parts)
		}
	}
	if f.given("expect-version") {
		want.Expect = &f.expect
	}
	want.Labels, err = parseLabels(f.labels)
	return want, err
}

// parseLabels reads labels K=V.
func parseLabels(texts []string) (map[string]string, error) {
	labels := map[string]string{}
	for _, text := range texts {
		k, v, ok := strings.Cut(text, "=")
		if !ok || k == "" {
			return nil, cli.Usagef("--label %q: want K=V", text)
		}
		if _, twice := labels[k]; twice {
			return nil, cli.Usagef("--label %s was given twice", k)
		}
		labels[k] = v
	}
	return labels, nil
}

func (p *program) put(ctx context.Context, name string, files []string, f putFlags) error {
	sources, err := f.sources(files)
	if err != nil {
		return err
	}
	want, err := f.request(name, sources)
	if err != nil {
		return err
	}
	if want.Transaction != "" && f.given("timeout") {
		want.Timeout = p.timeout
	}
	p.ifInterrupted("interrupted: nothing is kept of it")
	loads, err := openAll(ctx, sources)
	defer func() {
		for _, l := range loads {
			_ = l.close()
		}
	}()
	if err != nil {
		return err
	}
	devs, err := p.devices(sources)
	if err != nil {
		return err
	}
	k, err := p.connect(ctx)
	if err != nil {
		return err
	}
	defer k.Close()
	idle := newIdle(ctx, p.timeout)
	defer idle.stop()
	return idle.explain(p.keepAll(idle.ctx, k, want, p.parts(name, sources, devs, loads, idle)))
}

// ifInterrupted makes the command one that a signal ends soon, with that text. The end of the
// process frees its memory, and of its connection what the keeper had booked for it.
func (p *program) ifInterrupted(text string) { p.hasty.Store(&text) }

// devices finds the device of each source.
func (p *program) devices(sources []source) (devs []*cu.Device, err error) {
	drv, err := p.open()
	if err != nil {
		return nil, err
	}
	for _, s := range sources {
		dev, err := drv.FindDevice(s.device)
		if err != nil {
			return nil, err
		}
		if err := cli.NeedVMM(dev); err != nil {
			return nil, err
		}
		devs = append(devs, dev)
	}
	return devs, nil
}

// parts loads the parts, each on its device, one after the other.
func (p *program) parts(name string, sources []source, devs []*cu.Device, loads []*load, idle *idle) (parts []keeper.Part) {
	total, before := uint64(0), uint64(0)
	for _, l := range loads {
		total += l.bytes()
	}
	shown := func(done, _ uint64) {
		idle.alive()
		p.shown.Progress("Loading", before+done, total)
	}
	for i, l := range loads {
		write := func(ctx context.Context, b *vmm.Buffer) error {
			if err := l.write(shown)(ctx, b); err != nil {
				return err
			}
			before += l.bytes()
			p.ifInterrupted("interrupted while " + name + " was handed over: gpufd stat " + name + " says whether it is kept")
			return nil
		}
		parts = append(parts, keeper.Part{Index: sources[i].index, Device: devs[i], Size: l.size, Table: l.table, Layout: l.layout, Write: write})
	}
	return parts
}

func (p *program) keepAll(ctx context.Context, k *keeper.Client, want keeper.Put, parts []keeper.Part) error {
	start := time.Now()
	kept, err := k.Put(ctx, want, parts...)
	if err != nil {
		return err
	}
	took, total := time.Since(start), uint64(0)
	for _, part := range parts {
		total += part.Size
	}
	p.result = app.Fields{"name": want.Name, "version": kept.Version, "missing": kept.Missing, "digests": kept.Digests, "bytes": total, "seconds": took.Seconds()}
	if kept.Version == 0 {
		p.say("%s: %s, %s in %s; %s to come", want.Name, cli.Count(len(parts), "part"), cli.Human(total), app.Brief(took), cli.Count(kept.Missing, "part"))
		return nil
	}
	p.say("%s: version %d, %s in %s", want.Name, kept.Version, cli.Human(total), app.Brief(took))
	return nil
}
