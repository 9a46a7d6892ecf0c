package gpufd

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/keeper/api"
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
func (p *program) report(ctx context.Context, k *keeper.Client, d api.Data, got string) error {
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
	if f.output == standard {
		return p.stream(ctx, parts[0])
	}
	if !f.all {
		return p.writePart(ctx, parts[0], f.output)
	}
	dir, err := app.OutputPath(f.output)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
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
func tableOf(d api.Data) (t table, err error) {
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
	named := path
	if path, err = app.OutputPath(path); err != nil { // a link of this user stays
		return err
	}
	f, err := os.OpenFile(filepath.Join(filepath.Dir(path), ".gpufd-"+rand.Text()), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return fmt.Errorf("writing %s: %w", named, nameless(err))
	}
	buf := part.Buffer()
	o := vmm.TransferOptions{OnProgress: func(done, total uint64) { p.shown.Progress("Writing", done, total) }}
	if t.Format == formatTensors && t.Tensors != nil {
		err = t.Tensors.Write(ctx, f, buf, o)
	} else {
		err = buf.Store(ctx, []vmm.FileRange{{File: f, Size: buf.Size()}}, o)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("writing %s: %w", named, nameless(err)), os.Remove(f.Name()))
	}
	p.say("%s, version %d, part %d: written to %s", part.Data.Name, part.Data.Version, part.Data.Part, named)
	return nil
}

// nameless returns the system's error alone, if there is one: the file of the other words is a
// temporary one.
func nameless(err error) error {
	var number syscall.Errno
	if errors.As(err, &number) {
		return number
	}
	return err
}

// streamed is how many bytes go to standard output at a time.
const streamed = 4 << 20

// stream writes a part to standard output.
func (p *program) stream(ctx context.Context, part *keeper.Attached) (err error) {
	t, err := tableOf(part.Data)
	if err != nil {
		return err
	}
	out := newAsideWriter(p.data)
	defer out.end()
	buf, ranges := part.Buffer(), []vmm.FileRange{{Size: part.Size()}}
	if t.Format == formatTensors && t.Tensors != nil {
		var head []byte
		if head, ranges, err = t.Tensors.Layout(buf.Size()); err != nil {
			return err
		}
		if err := out.write(ctx, head); err != nil {
			return err
		}
	}
	dev, err := buf.Device().PrimaryContext()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	host := make([]byte, streamed)
	for _, s := range ranges {
		for done := uint64(0); done < s.Size; {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			piece := host[:min(streamed, s.Size-done)]
			if err := cu.CopyToHost(dev, piece, buf.Ptr().Add(s.Offset+done)); err != nil {
				return err
			}
			if err := out.write(ctx, piece); err != nil {
				return err
			}
			done += uint64(len(piece))
		}
	}
	return nil
}
