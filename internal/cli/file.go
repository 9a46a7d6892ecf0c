package cli

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// OpenRegular opens a file to read, and returns its size. The caller closes it. A pipe,
// which has no size and might block, is an error.
func OpenRegular(name string) (f *os.File, size uint64, err error) {
	if f, err = os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0); err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", name)
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, uint64(info.Size()), nil
}

// FindFile fails if the file that a flag names cannot be read.
func FindFile(flag, name string) error {
	f, _, err := OpenRegular(name)
	if err != nil {
		return fmt.Errorf("--%s %s: %w", flag, name, err)
	}
	return f.Close()
}
