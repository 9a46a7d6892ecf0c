package sys

import "fmt"

// Results of the crossing itself. The driver's own are below 1000.
const (
	// SymbolMissing says that the driver does not export the function.
	SymbolMissing CUresult = 1 << 16
	// bindFailed marks the result of a cuCtxSetCurrent that failed, so that the
	// call was not made.
	bindFailed CUresult = 1 << 17
)

// BindFailed reports whether cuCtxSetCurrent failed, so that the call was not
// made, and returns r without that mark. A bind that succeeded proves nothing
// about the context.
func (v CUresult) BindFailed() (CUresult, bool) { return v &^ bindFailed, v&bindFailed != 0 }

// enumNumber returns the String of a value without a name.
func enumNumber(typ string, v int64) string { return fmt.Sprintf("%s(%d)", typ, v) }
