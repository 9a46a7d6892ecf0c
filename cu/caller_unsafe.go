package cu

import (
	"unsafe"

	"github.com/gpufd/gpufd/cu/sys"
)

// Caller returns the raw driver API with c bound in every call, for functions
// that this package does not wrap. It keeps c reachable. Close does not wait for
// its calls.
func (c *Context) Caller() sys.Caller {
	if c == nil {
		return sys.Caller{}
	}
	return c.inner.call.Keep(unsafe.Pointer(c))
}
