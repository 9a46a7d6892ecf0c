package app

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/cli"
)

// needDescriptors is how many descriptors a program must be able to open. A producer
// or a consumer of one chunk needs 9, with Go's own 2.
const needDescriptors = 16

// checkDescriptors checks that enough descriptors can be opened, before anything opens
// one: if Go finds none for its poller, the process crashes.
func checkDescriptors(need int) error {
	var opened []int
	defer func() {
		for _, fd := range opened {
			_ = unix.Close(fd)
		}
	}()
	for len(opened) < need {
		fd, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
		switch {
		case err == nil:
			opened = append(opened, fd)
		case errors.Is(err, unix.EMFILE):
			return cli.Machinef("only %d more descriptors can be opened, and %d are needed: the limit of open files is too low; raise it with ulimit -n", len(opened), need)
		case !errors.Is(err, unix.EINTR):
			return cli.Machinef("opening %d descriptors: %w", need, err)
		}
	}
	return nil
}
