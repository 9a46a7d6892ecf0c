package cu

import (
	"fmt"
	"os"
	"strings"

	"github.com/gpufd/gpufd/cu/sys"
)

// cString returns s for the driver, which would stop at a zero byte.
func cString(op, s string) (*byte, error) {
	if strings.Contains(s, "\x00") {
		return nil, &Error{Op: op, Result: ErrInvalidValue, Detail: fmt.Sprintf("%q contains a zero byte", s)}
	}
	return sys.CString(s), nil
}

// readable returns the path of a file for the driver to read. The driver would
// wait forever on a pipe, so only regular files pass; if there is no file, the
// driver says so.
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
