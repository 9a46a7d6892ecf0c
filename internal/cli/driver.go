package cli

import (
	"errors"
	"os"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/soft"
)

// driverEnv chooses the driver that cu.Open opens, and is the default of --driver.
const driverEnv = "GPUFD_DRIVER"

// DefaultDriver returns the default of --driver.
func DefaultDriver() string {
	if v := os.Getenv(driverEnv); v != "" {
		return v
	}
	return "auto"
}

// OpenDriver opens the driver of that choice: auto, cuda or soft.
func OpenDriver(choice string, opts ...cu.Option) (*cu.Driver, error) {
	if err := os.Setenv(driverEnv, choice); err != nil {
		return nil, err
	}
	d, err := cu.Open(append(opts, cu.WithFallback(soft.Resolver))...)
	var bad *soft.ConfigError
	switch {
	case errors.As(err, &bad):
		return nil, Usagef("%w", err)
	case err != nil:
		return nil, Machinef("%w", err)
	}
	return d, nil
}
