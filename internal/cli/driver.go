package cli

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/soft"
	"github.com/gpufd/gpufd/cu/sys"
)

// openDriver opens the driver of that choice: cuda, soft, or auto, which takes
// the software driver only where libcuda is absent or sees no device. A driver
// that is there and broken is an error.
func openDriver(choice string, cuda, software func() (*cu.Driver, error)) (*cu.Driver, string, error) {
	switch choice {
	case "soft":
		d, err := software()
		return d, "as asked", err
	case "cuda":
		d, err := cuda()
		return d, "", err
	}
	d, err := cuda()
	var unopened *sys.LibraryError
	switch {
	case err == nil:
		return d, "", nil
	case errors.As(err, &unopened) && !unopened.Found:
		d, err = software()
		return d, "libcuda is not installed here", err
	case errors.Is(err, cu.ErrNoDevice):
		d, err = software()
		return d, "libcuda sees no GPU", err
	}
	return nil, "", fmt.Errorf("the driver is installed but does not work: %w; mend it, or use -driver soft", err)
}

func openCUDA() (*cu.Driver, error) { return cu.Open() }

func openSoft() (*cu.Driver, error) {
	d, err := cu.Open(cu.WithResolver(soft.Resolver))
	bad := soft.ConfigError()
	switch {
	case bad == nil:
		return d, err
	case is(bad, syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EIO, syscall.EMFILE, syscall.ENFILE):
		return nil, Machinef("the software driver's directory: %w", bad)
	default:
		return nil, Usagef("the software driver's environment: %w", bad)
	}
}

// Fault adds to the error of a kernel that died where it did, which the software
// driver knows.
func (a *App) Fault(err error) error {
	if fault := soft.LastFault(); a.Driver.Kind() == cu.Soft && fault != nil {
		return fmt.Errorf("%w: %w", err, fault)
	}
	return err
}

// defaultDriver is -driver's default.
func defaultDriver() string {
	if v := os.Getenv("GPUFD_DRIVER"); v != "" {
		return v
	}
	return "auto"
}
