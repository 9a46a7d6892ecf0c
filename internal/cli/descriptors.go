package cli

import (
	"errors"

	"golang.org/x/sys/unix"
)

// needDescriptors is how many descriptors a program must be able to open. A producer
// and a consumer of one chunk take 9; Go's own 2 are among them.
const needDescriptors = 16

// checkDescriptors makes sure that there are descriptors enough, before anything
// opens one: where Go finds none for its poller, the process dies in a dump.
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
			return Machinef("%d more descriptors can be opened here, and %d are needed: the limit of open files is too low; raise it with ulimit -n", len(opened), need)
		case !errors.Is(err, unix.EINTR):
			return Machinef("opening descriptors, of which %d are needed: %w", need, err)
		}
	}
	return nil
}
