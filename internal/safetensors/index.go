package safetensors

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// An index says which file of a directory each tensor is in.
type index struct{ fileOf map[string]string }

// strange are the numbers that Python writes and JSON does not have, and the texts between.
var strange = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|NaN|-?Infinity`)

// numbersOnly replaces strange numbers. They mean nothing in an index, so any other will do.
func numbersOnly(text []byte) []byte {
	return strange.ReplaceAllFunc(text, func(b []byte) []byte {
		if b[0] == '"' {
			return b
		}
		return []byte("0")
	})
}

// readIndex reads an index of size bytes. It takes the names in it only as names
// of files beside it or below.
func readIndex(r io.ReaderAt, size uint64) (*index, error) {
	if size > headerMost {
		return nil, fmt.Errorf("%w: an index of %d bytes", ErrFormat, size)
	}
	text := make([]byte, size)
	if _, err := r.ReadAt(text, 0); err != nil && size > 0 {
		return nil, err
	}
	if !utf8.Valid(text) {
		return nil, fmt.Errorf("%w: the index is not text", ErrFormat)
	}
	if bytes.Contains(text, []byte("NaN")) || bytes.Contains(text, []byte("Infinity")) {
		text = numbersOnly(text)
	}
	if err := CheckEscapes(text); err != nil {
		return nil, fmt.Errorf("%w: the index has %w", ErrFormat, err)
	}
	x := &index{}
	s := newScanner(text)
	err := s.object(func(key string) error {
		if key == "weight_map" {
			return x.read(s)
		}
		return s.skip(0)
	})
	if err == nil {
		err = s.end()
	}
	if err == nil && x.fileOf == nil {
		err = fmt.Errorf("there is no weight_map")
	}
	if err == nil && len(x.fileOf) == 0 {
		err = fmt.Errorf("its weight_map has no tensors")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: the index: %w", ErrFormat, err)
	}
	return x, nil
}

func (x *index) read(s scanner) error {
	x.fileOf = map[string]string{}
	return s.object(func(key string) error {
		file, err := s.text()
		if err != nil {
			return err
		}
		if file == "." || !fs.ValidPath(file) || len(file) >= unix.PathMax || strings.Contains(file, "\x00") {
			return fmt.Errorf("tensor %s is in %s, which is not the name of a file beside it or below", Quote(key), Quote(file))
		}
		x.fileOf[key] = file
		return nil
	})
}

// files returns the paths of all files, in the order of their names.
func (x *index) files(dir string) (paths []string) {
	for _, name := range slices.Compact(slices.Sorted(maps.Values(x.fileOf))) {
		paths = append(paths, filepath.Join(dir, name))
	}
	return paths
}

// agrees returns an error unless each tensor of the index is in its file. Files and headers
// belong together, in their order.
func (x *index) agrees(dir string, files []string, headers []*header) error {
	in := map[string][]string{}
	for i, h := range headers {
		for _, t := range h.tensors {
			in[t.Name] = append(in[t.Name], files[i])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(x.fileOf)) {
		file := x.fileOf[name]
		switch found := in[name]; {
		case slices.Contains(found, filepath.Join(dir, file)):
		case len(found) == 0:
			return fmt.Errorf("%w: the index has tensor %s in %s, but it is not there", ErrFormat, Quote(name), file)
		default:
			return fmt.Errorf("%w: the index has tensor %s in %s, but it is in %s", ErrFormat, Quote(name), file, filepath.Base(found[0]))
		}
	}
	return nil
}

// elsewhere reports whether the index has a tensor in another file than this.
func (x *index) elsewhere(dir, path string, t Tensor) bool {
	if x == nil {
		return false
	}
	file, known := x.fileOf[t.Name]
	return known && filepath.Join(dir, file) != path
}
