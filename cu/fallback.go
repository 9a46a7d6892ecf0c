package cu

import (
	"errors"
	"fmt"
	"os"

	"github.com/gpufd/gpufd/cu/sys"
)

// driverEnv is the environment variable that overrides [WithFallback].
const driverEnv = "GPUFD_DRIVER"

// WithFallback opens libcuda or, on a machine without a GPU to use, the driver
// whose functions r finds:
//
//	cu.Open(cu.WithFallback(soft.Resolver))
//
// There is no GPU if libcuda is not installed, or sees no device ([ErrNoDevice]).
// If libcuda cannot be loaded, or fails in any other way, it is broken: Open
// returns its error and does not use the fallback.
//
// The environment variable GPUFD_DRIVER overrides this: cuda opens only libcuda,
// soft opens r at once, and auto is the default. Open refuses other values.
//
// [Driver.Kind] tells which driver was opened, and [Driver.String] also why. If
// the fallback fails as well, the error of Open says why it was tried. Open fails
// if r is nil.
func WithFallback(r sys.Resolver) Option {
	return func(c *config) {
		if c.fallback = r; r == nil {
			c.err = errors.New("cu: WithFallback: the resolver is nil")
		}
	}
}

// openCUDAOrFallback opens libcuda or the fallback.
func openCUDAOrFallback(c config) (*Driver, error) {
	switch choice := os.Getenv(driverEnv); choice {
	case "cuda":
		return open(c)
	case "soft":
		return openFallback(c, "as asked", driverEnv+"=soft")
	case "", "auto":
	default:
		return nil, fmt.Errorf("cu: %s=%q: want auto, cuda or soft", driverEnv, choice)
	}
	d, err := open(c)
	if err == nil {
		return d, nil
	}
	if why := whyNoGPU(err); why != "" {
		return openFallback(c, why, why+", and the fallback fails")
	}
	return nil, fmt.Errorf("cu: the driver is installed but does not work: %w; repair it, or set %s=soft to do without a GPU", err, driverEnv)
}

// whyNoGPU says why there is no GPU here, or returns "" if err, the failure to open
// libcuda, means something else.
func whyNoGPU(err error) (why string) {
	var unopened *sys.LibraryError
	switch {
	case errors.As(err, &unopened) && !unopened.Found:
		return "libcuda is not installed here"
	case errors.Is(err, ErrNoDevice):
		return "libcuda sees no GPU"
	}
	return ""
}

// openFallback opens the fallback. The driver says why, and an error begins with context.
func openFallback(c config, why, context string) (*Driver, error) {
	c.resolver, c.name = c.fallback, ""
	d, err := open(c)
	if err != nil {
		return nil, fmt.Errorf("cu: %s: %w", context, err)
	}
	d.why = why
	return d, nil
}
