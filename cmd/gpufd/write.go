package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/vmm"
)

// verify compares the digests of all parts, and reports damaged ones.
func (p *program) verify(ctx context.Context, k *keeper.Client, parts []*keeper.Attached) error {
	var damaged []error
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
		damaged = append(damaged, p.report(ctx, k, d, got))
	}
	p.result["verified"] = len(damaged) == 0
	return errors.Join(damaged...)
}

// report tells the keeper that a part is damaged, and returns that as an error.
func (p *program) report(ctx context.Context, k *keeper.Client, d keeper.Data, got string) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	why := fmt.Sprintf("its digest is %s, and was %s", got, d.Digest)
	counted, err := k.Report(ctx, d.Name, d.Version, d.Part, "damaged", why)
	what := "the keeper does not serve it any more"
	switch {
	case err != nil:
		what = fmt.Sprintf("telling the keeper: %v", err)
	case !counted:
		what = "the keeper was told but goes on serving, because this user may not write or remove the name"
	}
	return cli.Codef(cli.ExitFailed, "%s, version %d, part %d is damaged: %s; %s", d.Name, d.Version, d.Part, why, what)
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

// tableOf reads a part's table; memory of another writer holds bytes.
func tableOf(d keeper.Data) (t table, err error) {
	if len(d.Table) == 0 {
		return table{Format: formatBytes}, nil
	}
	if err := json.Unmarshal(d.Table, &t); err != nil {
		return t, fmt.Errorf("the table of %s: %w", d.Name, err)
	}
	return t, nil
}

// writePart writes a part to a file, which appears once it is complete.
func (p *program) writePart(ctx context.Context, part *keeper.Attached, path string) (err error) {
	t, err := tableOf(part.Data)
	if err != nil {
		return err
	}
	if to, err := filepath.EvalSymlinks(path); err == nil {
		path = to // a link stays
	}
	f, err := os.OpenFile(filepath.Join(filepath.Dir(path), ".gpufd-"+rand.Text()), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	buf := part.Buffer()
	o := vmm.TransferOptions{OnProgress: func(done, total uint64) { p.shown.Progress("Writing", done, total) }}
	if t.Format == formatTensors && t.Tensors != nil {
		err = t.Tensors.Write(ctx, f, buf, o)
	} else {
		err = buf.Store(ctx, []vmm.Segment{{File: f, Size: buf.Size()}}, o)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	p.say("%s, version %d, part %d: written to %s", part.Data.Name, part.Data.Version, part.Data.Part, path)
	return nil
}
