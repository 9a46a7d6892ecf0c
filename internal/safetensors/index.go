package safetensors

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// indexSuffix ends the names of indexes.
const indexSuffix = ".safetensors.index.json"

// An index says which file of a directory each tensor is in.
type index struct{ fileOf map[string]string }

// readIndex reads an index of size bytes. It takes the names in it only as names
// of files beside it.
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
	x := &index{}
	s := newScanner(text)
	err := s.object(func(key string) error {
		if key == "weight_map" {
			return x.read(s)
		}
		var skipped json.RawMessage
		return s.dec.Decode(&skipped)
	})
	if err == nil {
		err = s.end()
	}
	if err == nil && x.fileOf == nil {
		err = fmt.Errorf("there is no weight_map")
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
		if file == "" || file == "." || file == ".." || len(file) > unix.NAME_MAX || strings.ContainsAny(file, "/\x00") {
			return fmt.Errorf("tensor %s is in %s, which is not the name of a file beside it", quote(key), quote(file))
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

// agrees returns an error unless each tensor of the index is in its file.
func (x *index) agrees(of map[string]*header) error {
	in := map[string]string{}
	for path, h := range of {
		for _, t := range h.tensors {
			in[t.Name] = filepath.Base(path)
		}
	}
	for name, file := range x.fileOf {
		if in[name] != file {
			return fmt.Errorf("%w: the index has tensor %s in %s, but it is not there", ErrFormat, quote(name), file)
		}
	}
	return nil
}
