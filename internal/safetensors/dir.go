package safetensors

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// shardName matches the name of one of several files that are a model together.
var shardName = regexp.MustCompile(`(?s)^(.*?)(\d+)-of-(\d+)(.*)$`)

// modelIn finds the model in a directory: its index, or else its files. Without an index
// those are one file, or all shards of one model; what else there may be, nobody can tell.
func modelIn(dir string) (index string, files []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", nil, fmt.Errorf("safetensors: %w", err)
	}
	var indexes, names, others []string
	for _, e := range entries {
		name := e.Name()
		switch {
		case strings.HasPrefix(name, "."): // ._NAME is what macOS keeps beside NAME
		case isDir(filepath.Join(dir, name)):
			others = append(others, name+"/")
		case indexName.MatchString(name):
			indexes = append(indexes, name)
		case isFile(name):
			names = append(names, name)
		default:
			others = append(others, name)
		}
	}
	switch {
	case len(indexes) == 1:
		return filepath.Join(dir, indexes[0]), nil, nil
	case len(indexes) > 1:
		return "", nil, fmt.Errorf("%w: %s has %d indexes, %s: give one of them", ErrFormat, dir, len(indexes), some(indexes))
	case len(names) == 0 && len(others) == 0:
		return "", nil, fmt.Errorf("%w: there are no *%s in %s: it is empty", ErrFormat, suffix, dir)
	case len(names) == 0:
		return "", nil, fmt.Errorf("%w: there are no *%s in %s: it has %s; give what is to be kept", ErrFormat, suffix, dir, some(others))
	}
	if err := oneModel(dir, names); err != nil {
		return "", nil, err
	}
	for _, name := range names {
		files = append(files, filepath.Join(dir, name))
	}
	return "", files, nil
}

func isDir(path string) bool {
	info, err := os.Stat(path) // a link may lead to one
	return err == nil && info.IsDir()
}

// oneModel returns an error unless files of a directory are one model by their names.
func oneModel(dir string, names []string) error {
	first := shardName.FindStringSubmatch(names[0])
	if first == nil {
		if len(names) == 1 {
			return nil
		}
		return several(dir, names)
	}
	there := map[int]bool{}
	for _, name := range names {
		m := shardName.FindStringSubmatch(name)
		if m == nil || m[1] != first[1] || m[3] != first[3] || m[4] != first[4] {
			return several(dir, names)
		}
		n, _ := strconv.Atoi(m[2])
		there[n] = true
	}
	of, err := strconv.Atoi(first[3])
	begin := 1
	if there[0] {
		begin = 0
	}
	for n := begin; n < of+begin && err == nil; n++ {
		if !there[n] {
			name := fmt.Sprintf("%s%0*d-of-%s%s", first[1], len(first[2]), n, first[3], first[4])
			return fmt.Errorf("%w: %s has no %s: a part of the model is missing", ErrFormat, dir, name)
		}
	}
	if len(names) != of {
		return several(dir, names)
	}
	return nil
}

func several(dir string, names []string) error {
	return fmt.Errorf("%w: %s has no index, and %s, which may be several models or forms of one: give the files of one", ErrFormat, dir, some(names))
}

// some names a few.
func some(names []string) string {
	const most = 4
	short := make([]string, 0, most)
	for _, name := range names[:min(most, len(names))] {
		short = append(short, strings.Trim(Quote(name), `"`))
	}
	text := strings.Join(short, ", ")
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
