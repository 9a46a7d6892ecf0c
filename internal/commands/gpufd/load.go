package gpufd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpufd/gpufd/internal/safetensors"
	"github.com/gpufd/gpufd/vmm"
)

// A load is the files that go into one buffer.
type load struct {
	size      uint64
	table     json.RawMessage
	layout    string // of tensors
	ranges    []vmm.FileRange
	unchanged func() error // fails if a file has changed since it was opened
	close     func() error
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

func openAll(ctx context.Context, sources []source) (loads []*load, err error) {
	for _, s := range sources {
		l, err := openSource(ctx, s.paths)
		if err != nil {
			return loads, err
		}
		loads = append(loads, l)
	}
	return loads, nil
}

func openSource(ctx context.Context, paths []string) (*load, error) {
	if len(paths) != 1 || paths[0] != standard {
		return openLoad(paths)
	}
	f, err := openInput(ctx, os.Stdin)
	if err != nil {
		return nil, err
	}
	m, err := safetensors.OpenFile(f)
	if err != nil {
		return nil, err
	}
	if m != nil {
		return tensorLoad(m, []string{f.Name()})
	}
	return bytesLoad([]*os.File{f})
}

// openLoad opens the files of a part, and plans its buffer.
func openLoad(paths []string) (*load, error) {
	tensors, err := safetensors.Are(paths...)
	switch {
	case err != nil:
		return nil, err
	case !tensors:
		return openBytes(paths)
	}
	m, err := safetensors.Open(paths...)
	if err != nil {
		return nil, explainFormat(err, paths)
	}
	return tensorLoad(m, paths)
}

// tensorLoad plans a buffer of a model.
func tensorLoad(m *safetensors.Model, paths []string) (*load, error) {
	l := &load{size: m.Table.Size, layout: safetensors.LayoutOf(m.Table.Tensors), ranges: m.Segments(), unchanged: m.Unchanged, close: m.Close}
	var err error
	l.table, err = json.Marshal(table{Format: formatTensors, Tensors: &m.Table})
	return l, l.check(err, paths)
}

// explainFormat says what to do about a file that breaks the format by which it is named.
func explainFormat(err error, paths []string) error {
	for _, path := range paths {
		if !strings.EqualFold(filepath.Ext(path), ".safetensors") {
			return err
		}
	}
	if errors.Is(err, safetensors.ErrFormat) {
		return fmt.Errorf("%w; get the whole file; if it is of another kind, give it a name without .safetensors: then put keeps its bytes", err)
	}
	return err
}

// bytes is how much is read from the files.
func (l *load) bytes() (n uint64) {
	for _, s := range l.ranges {
		n += s.Size
	}
	return n
}

func (l *load) check(err error, paths []string) error {
	if err == nil && l.size == 0 {
		err = fmt.Errorf("%s: nothing to keep: it is empty", strings.Join(paths, ", "))
	}
	if err != nil {
		_ = l.close()
	}
	return err
}

// openBytes plans a buffer of files, one after the other.
func openBytes(paths []string) (*load, error) {
	var open []*os.File
	for _, path := range paths {
		f, err := openFile(path)
		if err != nil {
			return nil, errors.Join(err, closeAll(open))
		}
		open = append(open, f)
	}
	return bytesLoad(open)
}

func closeAll(files []*os.File) error {
	var errs []error
	for _, f := range files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// bytesLoad plans a buffer of open files, which the load owns.
func bytesLoad(files []*os.File) (*load, error) {
	before := make([]fs.FileInfo, len(files))
	l := &load{close: func() error { return closeAll(files) }}
	l.unchanged = func() error {
		for i, f := range files {
			if err := safetensors.Unchanged(f, before[i]); err != nil {
				return err
			}
		}
		return nil
	}
	t, names := table{Format: formatBytes}, []string(nil)
	var errs error
	for i, f := range files {
		info, err := f.Stat()
		if err != nil {
			errs = errors.Join(errs, err)
			continue
		}
		before[i], names = info, append(names, f.Name())
		size := uint64(info.Size())
		if size == 0 {
			continue
		}
		t.Files = append(t.Files, fileEntry{filepath.Base(f.Name()), l.size, size})
		l.ranges = append(l.ranges, vmm.FileRange{File: f, Offset: l.size, Size: size})
		l.size += size
	}
	var err error
	l.table, err = json.Marshal(t)
	return l, l.check(errors.Join(errs, err), names)
}

func openFile(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: %w: want a file", path, vmm.ErrFile)
	}
	return os.Open(path)
}

// write loads the files into a buffer.
func (l *load) write(progress func(done, total uint64)) func(context.Context, *vmm.Buffer) error {
	return func(ctx context.Context, b *vmm.Buffer) error {
		err := b.Load(ctx, l.ranges, vmm.TransferOptions{OnProgress: progress})
		if changed := l.unchanged(); changed != nil {
			return changed
		}
		return err
	}
}
