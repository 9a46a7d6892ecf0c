package cu

import (
	"fmt"
	"strings"

	"github.com/gpufd/gpufd/cu/sys"
)

// ContextFlags say how a context waits and what it keeps: one of the Sched
// flags, and any of the others.
type ContextFlags uint32

// The flags of a context. The Sched flags say how a thread waits in the driver;
// waits of this package whose context can end poll instead.
const (
	SchedAuto              = ContextFlags(sys.CU_CTX_SCHED_AUTO)           // yield where there are more contexts than processors, else spin
	SchedSpin              = ContextFlags(sys.CU_CTX_SCHED_SPIN)           // spin: soonest, and keeps a processor busy
	SchedYield             = ContextFlags(sys.CU_CTX_SCHED_YIELD)          // let other threads run, but stay runnable
	SchedBlockingSync      = ContextFlags(sys.CU_CTX_SCHED_BLOCKING_SYNC)  // sleep until the device says that it is done
	ContextMapHost         = ContextFlags(sys.CU_CTX_MAP_HOST)             // pinned host memory can be mapped; always so since CUDA 11
	ContextLmemResizeToMax = ContextFlags(sys.CU_CTX_LMEM_RESIZE_TO_MAX)   // after a kernel, keep its local memory for the next
	ContextCoredump        = ContextFlags(sys.CU_CTX_COREDUMP_ENABLE)      // write a core dump when the device fails
	ContextUserCoredump    = ContextFlags(sys.CU_CTX_USER_COREDUMP_ENABLE) // let the user ask for a core dump
	ContextSyncMemOps      = ContextFlags(sys.CU_CTX_SYNC_MEMOPS)          // synchronous copies and sets wait in all cases
)

const schedMask = ContextFlags(sys.CU_CTX_SCHED_MASK)

// String gives the flags' names in C without CU_CTX_, e.g.
// "SCHED_AUTO|MAP_HOST".
func (f ContextFlags) String() string {
	names := []string{flagName(f & schedMask)}
	for bit := schedMask + 1; bit != 0; bit <<= 1 {
		if f&bit != 0 {
			names = append(names, flagName(bit))
		}
	}
	return strings.Join(names, "|")
}

// flagName names one flag, or gives its number.
func flagName(f ContextFlags) string {
	name, ok := strings.CutPrefix(sys.CUctx_flags(f).String(), "CU_CTX_")
	if !ok {
		return fmt.Sprintf("%#x", uint32(f))
	}
	return name
}
