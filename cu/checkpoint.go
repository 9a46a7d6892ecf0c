package cu

import (
	"fmt"
	"math"
	"time"

	"github.com/gpufd/gpufd/cu/sys"
)

// A Process is a process that uses CUDA, this one or another, as the driver's checkpoints see it (CUDA 12.8). A
// checkpoint moves the process's device memory into its host memory and frees the devices; a restore brings it back to the same
// addresses. Between Lock and Unlock every driver call of the process waits.
//
//	p := drv.Process(pid)
//	err := p.Lock(10 * time.Second)
//	err = p.Checkpoint()
//	…
//	err = p.Restore()
//	err = p.Unlock()
//
// A process that has memory of another process mapped is lost: Checkpoint succeeds, Restore returns [ErrNotSupported],
// and no call of the process returns from then on (C44). It has to unmap and release that memory before.
//
// The methods but Lock wait for as long as the driver takes, which grows with the memory. Errors of all of them:
// [SymbolError] on a driver before CUDA 12.8; [ErrNotSupported]; [ErrIllegalState] if the process is in another
// state than the method needs; [ErrInvalidValue] and others for what is no process with CUDA.
type Process struct {
	drv *Driver
	pid int32
}

// Process returns the process with that number in this PID namespace, which need not exist. A number that no process can
// have stands for none.
func (d *Driver) Process(pid int) Process {
	if pid < 0 || pid > math.MaxInt32 {
		pid = -1
	}
	return Process{d, int32(pid)}
}

// A ProcessState says how far a checkpoint of a process is.
type ProcessState sys.CUprocessState

// The states of a process.
const (
	ProcessRunning      = ProcessState(sys.CU_PROCESS_STATE_RUNNING)      // its calls go through
	ProcessLocked       = ProcessState(sys.CU_PROCESS_STATE_LOCKED)       // its calls wait
	ProcessCheckpointed = ProcessState(sys.CU_PROCESS_STATE_CHECKPOINTED) // it has no device memory, and its calls wait
	ProcessFailed       = ProcessState(sys.CU_PROCESS_STATE_FAILED)       // a checkpoint or restore failed, and it is lost
)

// String gives the state's name in C.
func (s ProcessState) String() string { return sys.CUprocessState(s).String() }

// State returns the state of the process (cuCheckpointProcessGetState).
func (p Process) State() (ProcessState, error) {
	v := new(sys.CUprocessState)
	err := p.drv.check("cuCheckpointProcessGetState", p.drv.call.CuCheckpointProcessGetState(p.pid, v))
	return ProcessState(*v), err
}

// Lock makes the driver calls of a running process wait, behind the work that it has queued
// (cuCheckpointProcessLock). The timeout counts in whole milliseconds, begun ones too. After it the process runs as before, and the
// error is the driver's: [ErrNotReady] as documented. [ErrInvalidValue]: a timeout of 0 or less, or of more than 2^32-1 ms.
func (p Process) Lock(timeout time.Duration) error {
	const op = "cuCheckpointProcessLock"
	ms := (timeout + time.Millisecond - 1) / time.Millisecond
	if ms <= 0 || ms > math.MaxUint32 {
		return &Error{Op: op, Result: ErrInvalidValue, Detail: fmt.Sprintf("a timeout of %v; want more than 0 and at most %d ms", timeout, uint32(math.MaxUint32))}
	}
	return p.drv.check(op, p.drv.call.CuCheckpointProcessLock(p.pid, &sys.CUcheckpointLockArgs{TimeoutMs: uint32(ms)}))
}

// Checkpoint moves the device memory of a locked process into its host memory and frees the devices
// (cuCheckpointProcessCheckpoint).
func (p Process) Checkpoint() error {
	r := p.drv.call.CuCheckpointProcessCheckpoint(p.pid, &sys.CUcheckpointCheckpointArgs{})
	return p.drv.check("cuCheckpointProcessCheckpoint", r)
}

// A DevicePair names the device that a process had before its checkpoint and the one that it has after its restore.
type DevicePair struct{ Old, New UUID }

// Restore moves the memory of a checkpointed process back to its devices, and leaves the process locked
// (cuCheckpointProcessRestore). Without pairs each device is the one that it was; with pairs, name every device.
// [ErrOutOfMemory]: a device has no room.
func (p Process) Restore(pairs ...DevicePair) error {
	args := &sys.CUcheckpointRestoreArgs{GpuPairsCount: uint32(len(pairs))}
	if len(pairs) > 0 {
		raw := make([]sys.CUcheckpointGpuPair, len(pairs))
		for i, pair := range pairs {
			raw[i] = sys.CUcheckpointGpuPair{OldUuid: sys.CUuuid{Bytes: pair.Old}, NewUuid: sys.CUuuid{Bytes: pair.New}}
		}
		args.GpuPairs = &raw[0]
	}
	return p.drv.check("cuCheckpointProcessRestore", p.drv.call.CuCheckpointProcessRestore(p.pid, args))
}

// Unlock lets the driver calls of a locked process go on (cuCheckpointProcessUnlock).
func (p Process) Unlock() error {
	r := p.drv.call.CuCheckpointProcessUnlock(p.pid, &sys.CUcheckpointUnlockArgs{})
	return p.drv.check("cuCheckpointProcessUnlock", r)
}

// RestoreThreadID returns the number of the thread of the process that carries out restores
// (cuCheckpointProcessGetRestoreThreadId). A tool that restores the rest of the process from a file must let it run first.
func (p Process) RestoreThreadID() (int, error) {
	v := new(int32)
	err := p.drv.check("cuCheckpointProcessGetRestoreThreadId", p.drv.call.CuCheckpointProcessGetRestoreThreadId(p.pid, v))
	return int(*v), err
}
