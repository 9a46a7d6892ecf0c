package safetensors

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/vmm"
)

// A Model is open files with a plan for a buffer that holds their tensors. The caller
// owns it.
type Model struct {
	Table    Table
	segments []vmm.Segment
	files    []*os.File
	disputed map[string]bool // keys of metadata with two values
}

// Open opens files of the format, indexes (*.json) with the files that they name,
// and directories: with their index, or else all their *.safetensors. Two files
// cannot have the same tensor. Open drops metadata in which two files contradict
// each other.
//
// Errors: [ErrFormat], with the file's name; [vmm.ErrFile] for a pipe and the
// like.
func Open(paths ...string) (*Model, error) {
	m := &Model{Table: Table{Tensors: []Tensor{}, Metadata: map[string]string{}}, disputed: map[string]bool{}}
	for _, path := range paths {
		if err := m.add(path); err != nil {
			return nil, errors.Join(err, m.Close())
		}
	}
	if err := m.Table.Check(); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// Segments returns what to load into a buffer of Table.Size bytes. The segments
// are valid until Close; after it there are none.
func (m *Model) Segments() []vmm.Segment {
	if m == nil {
		return nil
	}
	return slices.Clone(m.segments)
}

// Close closes the files. It may be called again, and on nil.
func (m *Model) Close() error {
	if m == nil {
		return nil
	}
	var errs []error
	for _, f := range m.files {
		errs = append(errs, f.Close())
	}
	m.files, m.segments = nil, nil
	return errors.Join(errs...)
}

// add adds what is at path.
func (m *Model) add(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return fmt.Errorf("safetensors: %w", err)
	case info.IsDir():
		return m.addDir(path)
	case strings.HasSuffix(path, ".json"):
		return m.addIndex(path)
	}
	_, err = m.addFiles([]string{path})
	return err
}

func (m *Model) addDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	var indexes, files []string
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch {
		case strings.HasSuffix(path, indexSuffix):
			indexes = append(indexes, path)
		case strings.HasSuffix(path, ".safetensors"):
			files = append(files, path)
		}
	}
	switch {
	case len(indexes) == 1:
		return m.addIndex(indexes[0])
	case len(indexes) > 1:
		return fmt.Errorf("safetensors: %s has %d indexes; name one of them", dir, len(indexes))
	case len(files) == 0:
		return fmt.Errorf("safetensors: there are no *.safetensors in %s", dir)
	}
	_, err = m.addFiles(files)
	return err
}

func (m *Model) addIndex(path string) error {
	f, size, err := openRegular(path)
	if err != nil {
		return err
	}
	x, err := readIndex(f, size)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	headers, err := m.addFiles(x.files(filepath.Dir(path)))
	if err != nil {
		return err
	}
	if err := x.agrees(headers); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// addFiles adds files of the format, and returns their headers by path.
func (m *Model) addFiles(paths []string) (map[string]*header, error) {
	headers := map[string]*header{}
	for _, path := range paths {
		f, size, err := openRegular(path)
		if err != nil {
			return nil, err
		}
		m.files = append(m.files, f)
		h, err := readHeader(f, size)
		if err == nil {
			err = m.plan(f, h)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		headers[path] = h
	}
	return headers, nil
}

// plan puts the tensors of a file behind the others. Tensors that follow each
// other both in the file and in the buffer are one segment.
func (m *Model) plan(f *os.File, h *header) error {
	old := len(m.Table.Tensors)
	if err := m.Table.place(h.tensors); err != nil {
		return err
	}
	for i, t := range m.Table.Tensors[old:] {
		s := vmm.Segment{File: f, At: h.dataAt + h.tensors[i].Offset, Offset: t.Offset, Size: t.Bytes}
		if n := len(m.segments); n > 0 && follows(m.segments[n-1], s) {
			m.segments[n-1].Size += s.Size
		} else if s.Size > 0 {
			m.segments = append(m.segments, s)
		}
	}
	m.merge(h.metadata)
	return nil
}

// merge adds the metadata of one more file.
func (m *Model) merge(more map[string]string) {
	for key, value := range more {
		if old, has := m.Table.Metadata[key]; has && old != value {
			m.disputed[key] = true
		}
		m.Table.Metadata[key] = value
	}
	maps.DeleteFunc(m.Table.Metadata, func(key, _ string) bool { return m.disputed[key] })
}

func follows(a, b vmm.Segment) bool {
	return a.File == b.File && a.At+a.Size == b.At && a.Offset+a.Size == b.Offset
}

// openRegular opens a file for reading, and does not wait for the writer of a
// pipe.
func openRegular(path string) (*os.File, uint64, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("safetensors: %w", err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%w: %s", vmm.ErrFile, path)
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, uint64(info.Size()), nil
}
