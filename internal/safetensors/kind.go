package safetensors

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/gpufd/gpufd/vmm"
)

// suffix ends the names of files of the format, in any case.
const suffix = ".safetensors"

// indexName matches the names of indexes, of variants too: model.safetensors.index.fp16.json.
var indexName = regexp.MustCompile(`(?i)\.safetensors\.index(\.[^/]+)?\.json$`)

// Are reports whether files are tensors, which [Open] takes: all are, or none. A directory is; a
// file is by its name or by its content, because a cache names its files otherwise.
//
// Errors: [ErrFormat] for some that are and some that are not, and for what nobody means to keep:
// a pointer of git LFS, an index under another name.
func Are(paths ...string) (bool, error) {
	are, first := false, ""
	for i, path := range paths {
		is, err := isTensors(path)
		if err != nil {
			return false, err
		}
		if i > 0 && is != are {
			yes, no := path, first
			if are {
				yes, no = first, path
			}
			return false, fmt.Errorf("%w: %s is taken for tensors, and %s is of another kind: give files of tensors alone, the directory that they are in, "+
				"or none of them: what is kept is tensors or bytes", ErrFormat, yes, no)
		}
		are, first = is, path
	}
	return are, nil
}

func isTensors(path string) (bool, error) {
	info, err := os.Stat(path)
	if err != nil {
		return false, err
	}
	if info.IsDir() || isFile(path) || indexName.MatchString(path) {
		return true, nil
	}
	if !info.Mode().IsRegular() {
		return false, fmt.Errorf("%s: %w: want a file", path, vmm.ErrFile)
	}
	f, size, err := openRegular(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	if strings.HasSuffix(path, ".json") && !bytes.HasPrefix(beginning(f), pointer) {
		return namesFiles(f, size), nil
	}
	return holdsTensors(f, path, size)
}

// holdsTensors is [Are] for a file whose name says nothing.
func holdsTensors(f io.ReaderAt, name string, size uint64) (bool, error) {
	if looks(f, size) {
		return true, nil
	}
	if begin := beginning(f); bytes.HasPrefix(begin, pointer) {
		return false, fmt.Errorf("%w: %s: %s", ErrFormat, name, what(begin))
	} else if bytes.HasPrefix(begin, []byte("{")) && namesFiles(f, size) {
		return false, fmt.Errorf("%w: %s is the index of a model under another name: give it by a name that ends in .json, beside the files that it names", ErrFormat, name)
	}
	return false, nil
}

// isFile reports whether a name is that of a file of the format.
func isFile(path string) bool { return strings.EqualFold(filepath.Ext(path), suffix) }

// looks reports whether a file begins as the format does, with the length of a header and the header.
func looks(f io.ReaderAt, size uint64) bool {
	var b [prefix + 2]byte
	if _, err := f.ReadAt(b[:], 0); err != nil || size < prefix+2 {
		return false
	}
	n := binary.LittleEndian.Uint64(b[:])
	return n >= 2 && n <= headerMost && b[prefix] == '{' && strings.IndexByte("\"} \t\r\n", b[prefix+1]) >= 0
}

// namesFiles reports whether JSON is an index.
func namesFiles(f io.ReaderAt, size uint64) bool {
	if size > headerMost {
		return false
	}
	text := make([]byte, size)
	n, _ := f.ReadAt(text, 0)
	return bytes.Contains(text[:n], []byte(`"weight_map"`))
}

// beginning returns what a file begins with.
func beginning(f io.ReaderAt) []byte {
	b := make([]byte, 4096)
	n, _ := f.ReadAt(b, 0)
	return b[:n]
}

// pointer begins the files that git leaves where LFS has not fetched the content.
var pointer = []byte("version https://git-lfs.github.com/spec/")

// what says what a file is that is not of the format, by its beginning, or nothing.
func what(begin []byte) string {
	text := strings.ToLower(strings.TrimSpace(string(begin)))
	switch {
	case len(begin) == 0:
		return "it is empty"
	case bytes.HasPrefix(begin, pointer):
		return "it is a pointer of git LFS, not the file: fetch that with git lfs pull"
	case strings.HasPrefix(text, "<!doctype html"), strings.HasPrefix(text, "<html"):
		return "it is a page of HTML, such as a server sends instead of a file"
	case bytes.HasPrefix(begin, []byte("PK\x03\x04")), bytes.HasPrefix(begin, []byte{0x80, 2}):
		return "it is a file of PyTorch's (torch.save), or another archive"
	case bytes.HasPrefix(begin, []byte("GGUF")):
		return "it is a GGUF file"
	case bytes.HasPrefix(begin, []byte{0, 5, 0x16, 7}):
		return "it is what macOS keeps beside a file (AppleDouble)"
	case strings.HasPrefix(text, "{"), strings.HasPrefix(text, "["):
		return "it is JSON, such as a server sends instead of a file"
	case len(bytes.Trim(begin, "\x00")) == 0:
		return "it begins with zeros, as a file does whose download goes on"
	}
	return ""
}
