package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/safetensors"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/vmm"
)

type putFlags struct {
	device      string
	parts       []string
	transaction string
	of          int
	labels      []string
	expect      int64
}

func (p *program) putCommand() *cobra.Command {
	var f putFlags
	cmd := &cobra.Command{
		Use:   "put NAME (FILE… | --part I@DEVICE=PATH…)",
		Short: "Load files into GPU memory, have the keeper keep it, and leave",
		Long: `put loads files into GPU memory and hands that to the keeper, as the next version of
NAME. Files of safetensors, several or a directory of them, become one buffer with a table
of its tensors; other files are bytes, one behind the other.

A version may have several parts, each on one device: with --part for each, or with a
--transaction that several calls of put name, of --parts parts in all. The last part that
comes commits the version; until then readers have the one before.

Where the device has no room put waits as long as --timeout says.`,
		Args: p.args(1, -1, "a name, and files or --part"),
		RunE: func(c *cobra.Command, args []string) error { return p.put(c, args[0], args[1:], f) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.device, "device", "0", "the device to load to, an ordinal or a UUID")
	fl.StringArrayVar(&f.parts, "part", nil, "part `I@DEVICE=PATH`: part I of the version, on a device, of a file or directory")
	fl.StringVar(&f.transaction, "transaction", "", "the `name` of a version that several calls put together")
	fl.IntVar(&f.of, "parts", 0, "how many parts the version has in all")
	fl.StringArrayVar(&f.labels, "label", nil, "a label `K=V` of the version")
	fl.Int64Var(&f.expect, "expect-version", -1, "put only if the current version is `V`, 0 for none")
	p.driverFlag(cmd)
	return cmd
}

// A source is a part's files.
type source struct {
	index  int
	device string
	paths  []string
}

// sources reads what the command line says of the parts.
func (f *putFlags) sources(files []string) ([]source, error) {
	switch {
	case len(files) > 0 && len(f.parts) > 0:
		return nil, cli.Usagef("want files or --part, not both")
	case len(files) == 0 && len(f.parts) == 0:
		return nil, cli.Usagef("nothing to put: want files, or --part I@DEVICE=PATH")
	case len(files) > 0:
		return []source{{0, f.device, files}}, nil
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
			return nil, cli.Usagef("--part %d is there twice", i)
		}
		seen[i] = true
		all = append(all, source{i, device, []string{path}})
	}
	return all, nil
}

// request is what the keeper is asked.
func (f *putFlags) request(name string, sources []source, timeout time.Duration) (keeper.Put, error) {
	p := keeper.Put{Name: name, Parts: f.of, Transaction: f.transaction, Timeout: timeout, Labels: map[string]string{}}
	if p.Parts == 0 {
		p.Parts = len(sources)
	}
	switch {
	case f.of < 0, f.expect < -1:
		return p, cli.Usagef("--parts and --expect-version want 0 or more")
	case f.transaction == "" && p.Parts != len(sources):
		return p, cli.Usagef("--parts %d, and %d are here: name the --transaction that the others belong to", p.Parts, len(sources))
	case f.transaction != "" && f.of == 0:
		return p, cli.Usagef("--transaction wants --parts: how many parts the version has in all")
	}
	for _, s := range sources {
		if s.index >= p.Parts {
			return p, cli.Usagef("part %d of %d: they count from 0", s.index, p.Parts)
		}
	}
	for _, l := range f.labels {
		k, v, ok := strings.Cut(l, "=")
		if !ok || k == "" {
			return p, cli.Usagef("--label %q: want K=V", l)
		}
		p.Labels[k] = v
	}
	if f.expect >= 0 {
		v := uint64(f.expect)
		p.Expect = &v
	}
	return p, nil
}

func (p *program) put(c *cobra.Command, name string, files []string, f putFlags) error {
	sources, err := f.sources(files)
	if err != nil {
		return err
	}
	want, err := f.request(name, sources, p.timeout)
	if err != nil {
		return err
	}
	loads, err := openAll(sources)
	defer func() {
		for _, l := range loads {
			_ = l.close()
		}
	}()
	if err != nil {
		return err
	}
	ctx, cancel := p.within(c)
	k, err := p.dial(ctx)
	cancel()
	if err != nil {
		return err
	}
	defer k.Close()
	drv, err := p.open()
	if err != nil {
		return err
	}
	var parts []keeper.Part
	var total uint64
	shown := p.progress()
	for i, l := range loads {
		dev, err := drv.FindDevice(sources[i].device)
		if err != nil {
			return err
		}
		if err := cli.NeedVMM(dev); err != nil {
			return err
		}
		total += l.size
		parts = append(parts, keeper.Part{Index: sources[i].index, Device: dev, Size: l.size, Table: l.table, Write: l.write(shown)})
	}
	return p.keepAll(c.Context(), k, want, parts, total)
}

func (p *program) keepAll(ctx context.Context, k *keeper.Client, want keeper.Put, parts []keeper.Part, total uint64) error {
	start := time.Now()
	kept, err := k.Put(ctx, want, parts...)
	if err != nil {
		return err
	}
	took := time.Since(start).Seconds()
	p.result = cli.Fields{"name": want.Name, "version": kept.Version, "missing": kept.Missing, "digests": kept.Digests, "bytes": total, "seconds": took}
	if kept.Version == 0 {
		p.say("%s: %s, %s in %.1f s; %s to come", want.Name, cli.Count(len(parts), "part"), cli.Human(total), took, cli.Count(kept.Missing, "part"))
		return nil
	}
	p.say("%s: version %d, %s in %.1f s", want.Name, kept.Version, cli.Human(total), took)
	return nil
}

// progress shows how far loading is, on a terminal.
func (p *program) progress() func(done, total uint64) {
	o := cli.NewProgress(p.out)
	return func(done, total uint64) { o.Progress("Loading", done, total) }
}

// A load is files that go into one buffer.
type load struct {
	size     uint64
	table    json.RawMessage
	segments []vmm.Segment
	close    func() error
}

// A table says what a part holds: tensors, or files.
type table struct {
	Format  string             `json:"format"` // safetensors or bytes
	Files   []fileEntry        `json:"files,omitempty"`
	Tensors *safetensors.Table `json:"safetensors,omitempty"`
}

type fileEntry struct {
	Name   string `json:"name"`
	Offset uint64 `json:"offset"`
	Bytes  uint64 `json:"bytes"`
}

// The formats of a part.
const (
	formatTensors = "safetensors"
	formatBytes   = "bytes"
)

func openAll(sources []source) (loads []*load, err error) {
	for _, s := range sources {
		l, err := openLoad(s.paths)
		if err != nil {
			return loads, err
		}
		loads = append(loads, l)
	}
	return loads, nil
}

// openLoad opens the files of a part, and plans its buffer.
func openLoad(paths []string) (*load, error) {
	if areTensors(paths) {
		m, err := safetensors.Open(paths...)
		if err != nil {
			return nil, err
		}
		l := &load{size: m.Table.Size, segments: m.Segments(), close: m.Close}
		l.table, err = json.Marshal(table{Format: formatTensors, Tensors: &m.Table})
		return l, l.check(err, paths)
	}
	return openBytes(paths)
}

func (l *load) check(err error, paths []string) error {
	if err == nil && l.size == 0 {
		err = fmt.Errorf("%s: there is nothing in it to keep", strings.Join(paths, ", "))
	}
	if err != nil {
		_ = l.close()
	}
	return err
}

// areTensors says whether files are taken for safetensors: by their names.
func areTensors(paths []string) bool {
	for _, path := range paths {
		info, err := os.Stat(path)
		isDir := err == nil && info.IsDir()
		if !isDir && !strings.HasSuffix(path, ".safetensors") && !strings.HasSuffix(path, ".safetensors.index.json") {
			return false
		}
	}
	return true
}

// openBytes plans a buffer of files one behind the other.
func openBytes(paths []string) (l *load, err error) {
	var open []*os.File
	closeAll := func() error {
		var errs []error
		for _, f := range open {
			errs = append(errs, f.Close())
		}
		return errors.Join(errs...)
	}
	l = &load{close: closeAll}
	t := table{Format: formatBytes}
	for _, path := range paths {
		f, size, err := openFile(path)
		if err != nil {
			return nil, errors.Join(err, closeAll())
		}
		open = append(open, f)
		if size == 0 {
			continue
		}
		t.Files = append(t.Files, fileEntry{filepath.Base(path), l.size, size})
		l.segments = append(l.segments, vmm.Segment{File: f, Offset: l.size, Size: size})
		l.size += size
	}
	l.table, err = json.Marshal(t)
	return l, l.check(err, paths)
}

func openFile(path string) (*os.File, uint64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("%s: %w: want a file", path, vmm.ErrFile)
	}
	f, err := os.Open(path)
	return f, uint64(info.Size()), err
}

// write loads the files into a buffer.
func (l *load) write(progress func(done, total uint64)) func(context.Context, *vmm.Buffer) error {
	return func(ctx context.Context, b *vmm.Buffer) error {
		return b.Load(ctx, l.segments, vmm.TransferOptions{OnProgress: progress})
	}
}

var _ = cu.Soft
