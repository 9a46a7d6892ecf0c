package cu

import (
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/internal/hints"
)

// hint says what to do, where that can be said of the result.
func (e *Error) hint() string {
	return hints.For(e.failed(), sys.CUresult(e.Result), e.Kind == Soft)
}
