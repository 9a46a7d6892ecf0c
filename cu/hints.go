package cu

import (
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/internal/advice"
)

// hint says what to do, where that can be said of the result.
func (e *Error) hint() string {
	return advice.For(e.failed(), sys.CUresult(e.Result), e.Kind == Soft)
}
