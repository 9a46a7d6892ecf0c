package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpufd/gpufd/internal/safetensors"
	"github.com/gpufd/gpufd/vmm"
)

// A load is the files that go into one buffer.
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
		if errors.Is(err, safetensors.ErrFormat) {
			return nil, fmt.Errorf("%w; get a whole file, or, if it is of another kind, give it a name without .safetensors: then put keeps its bytes", err)
		}
		if err != nil {
			return nil, err
		}
		l := &load{size: m.Table.Size, segments: m.Segments(), close: m.Close}
		l.table, err = json.Marshal(table{Format: formatTensors, Tensors: &m.Table})
		return l, l.check(err, paths)
	}
	return openBytes(paths)
}

// bytes is how much is read from the files.
func (l *load) bytes() (n uint64) {
	for _, s := range l.segments {
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

// areTensors reports whether files are safetensors, by their names.
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

// openBytes plans a buffer of files, one after the other.
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
