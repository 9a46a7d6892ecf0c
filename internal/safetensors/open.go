package safetensors

import (
	"errors"
	"fmt"
	"io/fs"
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
	segments []vmm.FileRange
	files    []*os.File
	before   []fs.FileInfo     // what the files were when they were opened
	in       map[string]string // the file that each tensor is in
	disputed map[string]bool   // keys of metadata with two values
}

// Open opens files of the format, indexes (*.json) with the files that they name,
// and directories: with their index, or else one file or all shards of a model.
// Two files cannot have the same tensor, unless an index says which one counts.
// Open drops metadata in which two files contradict each other.
//
// Errors: [ErrFormat], with the file's name; [vmm.ErrFile] for a pipe and the
// like.
func Open(paths ...string) (*Model, error) {
	m := newModel()
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

// OpenFile is Open for a file that is open, if that looks like one of the format. Else there
// is no model, and the file is the caller's; with an error it is closed. It refuses what [Are] does.
func OpenFile(f *os.File) (*Model, error) {
	info, err := f.Stat()
	is := false
	if err == nil {
		is, err = holdsTensors(f, f.Name(), uint64(info.Size()))
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if !is {
		return nil, nil
	}
	m := newModel()
	if _, err = m.addFile(f.Name(), f, info, func(Tensor) bool { return true }); err == nil {
		err = m.Table.Check()
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func newModel() *Model {
	return &Model{Table: Table{Tensors: []Tensor{}, Metadata: map[string]string{}}, disputed: map[string]bool{}, in: map[string]string{}}
}

// Segments returns what to load into a buffer of Table.Size bytes. The segments
// are valid until Close; after it there are none.
func (m *Model) Segments() []vmm.FileRange {
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
	m.files, m.before, m.segments = nil, nil, nil
	return errors.Join(errs...)
}

// Unchanged returns an error if one of the files has changed since it was opened, so that what
// was read may be of two minds.
func (m *Model) Unchanged() error {
	for i, f := range m.files {
		if err := Unchanged(f, m.before[i]); err != nil {
			return err
		}
	}
	return nil
}

// ErrChanged says that a file has changed while it was read.
var ErrChanged = errors.New("changed while it was read")

// Unchanged returns an error if a file has changed since it had that size and time.
func Unchanged(f *os.File, before fs.FileInfo) error {
	now, err := f.Stat()
	if err != nil {
		return err
	}
	if now.Size() != before.Size() || !now.ModTime().Equal(before.ModTime()) {
		return fmt.Errorf("%s %w: it had %d bytes of %s, and has %d of %s; put it when nobody writes it", f.Name(), ErrChanged,
			before.Size(), before.ModTime().Format(stamp), now.Size(), now.ModTime().Format(stamp))
	}
	return nil
}

const stamp = "15:04:05.000000"

// add adds what is at path.
func (m *Model) add(path string) error {
	index, files, err := path, []string{path}, error(nil)
	switch {
	case isDir(path):
		if index, files, err = modelIn(path); err != nil {
			return err
		}
	case !strings.HasSuffix(path, ".json"):
		index = ""
	}
	if index != "" {
		return m.addIndex(index)
	}
	for _, path := range files {
		if _, err := m.open(path, nil, ""); err != nil {
			return err
		}
	}
	return nil
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
	var headers []*header
	dir := filepath.Dir(path)
	files := x.files(dir)
	for _, file := range files {
		h, err := m.open(file, x, dir)
		if err != nil {
			return err
		}
		headers = append(headers, h)
	}
	if err := x.agrees(dir, files, headers); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// open adds a file of the format, without the tensors that the index has in others.
func (m *Model) open(path string, x *index, dir string) (*header, error) {
	f, _, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return m.addFile(path, f, info, func(t Tensor) bool { return !x.elsewhere(dir, path, t) })
}

// addFile adds those tensors of a file that count, and returns its header.
func (m *Model) addFile(path string, f *os.File, info fs.FileInfo, counts func(Tensor) bool) (*header, error) {
	m.files, m.before = append(m.files, f), append(m.before, info)
	h, err := readHeader(f, uint64(info.Size()))
	if errors.Is(err, ErrFormat) {
		if is := what(beginning(f)); is != "" {
			err = fmt.Errorf("%w; %s", err, is)
		}
	}
	if err == nil {
		err = m.plan(path, f, h, counts)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return h, nil
}

// plan puts the tensors of a file behind the others. Tensors that follow each
// other both in the file and in the buffer are one segment.
func (m *Model) plan(path string, f *os.File, h *header, counts func(Tensor) bool) error {
	for _, x := range h.tensors {
		if !counts(x) {
			continue
		}
		if other, has := m.in[x.Name]; has {
			return fmt.Errorf("%w: tensor %s is there twice, in %s too", ErrFormat, Quote(x.Name), other)
		}
		m.in[x.Name] = path
		at, err := m.Table.place(x)
		if err != nil {
			return err
		}
		s := vmm.FileRange{File: f, At: h.dataAt + x.Offset, Offset: at, Size: x.Bytes}
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

func follows(a, b vmm.FileRange) bool {
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
