package cu

import (
	"fmt"
	"os"
	"strings"

	"github.com/gpufd/gpufd/cu/sys"
)

// cString is s for the driver. A zero would end it early there.
func cString(op, s string) (*byte, error) {
	if strings.Contains(s, "\x00") {
		return nil, &Error{Op: op, Result: ErrInvalidValue, Detail: fmt.Sprintf("there is a zero byte in %q", s)}
	}
	return sys.CString(s), nil
}

// readable is the path of a file for the driver to read. Of a pipe it would wait
// for ever, so that only regular files pass; that there is none the driver says.
func readable(op, path string) (*byte, error) {
	name, err := cString(op, path)
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, &Error{Op: op, Result: ErrInvalidValue, Detail: path + " is not a regular file"}
	}
	return name, nil
}
