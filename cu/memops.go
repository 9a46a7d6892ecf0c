package cu

import "github.com/gpufd/gpufd/cu/sys"

// WaitFlags say what a stream waits for: one of the conditions, and WaitFlush if
// needed.
type WaitFlags uint32

// The conditions of a wait for a word in memory, and WaitFlush, which may be
// added.
const (
	WaitGEQ   = WaitFlags(sys.CU_STREAM_WAIT_VALUE_GEQ)   // word - value, as a signed number, is not negative: a counter may wrap around, and must be less than half its range ahead
	WaitEQ    = WaitFlags(sys.CU_STREAM_WAIT_VALUE_EQ)    // word == value
	WaitAND   = WaitFlags(sys.CU_STREAM_WAIT_VALUE_AND)   // word & value != 0
	WaitNOR   = WaitFlags(sys.CU_STREAM_WAIT_VALUE_NOR)   // ^(word | value) != 0; see Device.SupportsWaitNOR
	WaitFlush = WaitFlags(sys.CU_STREAM_WAIT_VALUE_FLUSH) // work after the wait sees what other devices wrote before the word, over PCIe too; see Device.SupportsWaitFlush
)

// WriteFlags change how a stream writes a value.
type WriteFlags uint32

// The ways of writing a value.
const (
	WriteDefault         = WriteFlags(sys.CU_STREAM_WRITE_VALUE_DEFAULT)           // the word comes after what the stream wrote before
	WriteNoMemoryBarrier = WriteFlags(sys.CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) // the word may come earlier; ErrInvalidValue from CUDA 11.7 on
)

// BarrierScope says which observers a barrier orders memory accesses for.
type BarrierScope uint32

// The scopes of a barrier.
const (
	BarrierSystem = BarrierScope(sys.CU_STREAM_MEMORY_BARRIER_TYPE_SYS)
	BarrierDevice = BarrierScope(sys.CU_STREAM_MEMORY_BARRIER_TYPE_GPU)
)

// WaitValue32 makes later work on s wait until the word at p, aligned to its
// size, meets the condition, and returns at once (cuStreamWaitValue32). The word
// is in device memory or pinned host memory, not in managed memory. Any writer
// ends the wait: another stream, another process that shares the memory, the
// host.
//
// Nothing else ends the wait. Until the word is written, [Stream.Synchronize] and
// [Context.Synchronize] wait, until their context ends; Close of the stream waits
// only if the stream is full ([Stream.Close]); Close of memory waits as long as [WithCloseLimit] says, and that of the context without
// end. If the writer may die, keep a mapping through which this process can write
// the word: see [Stream.Guard]. Unmapping the memory, or removing access to it,
// loses the context, with [ErrLaunchFailed].
//
// Streams share hardware queues, eight by default (CUDA_DEVICE_MAX_CONNECTIONS,
// at most 32), and those that wait may hold up the one that is to write the word.
// Let few streams of a context wait at once. On an H100 four held up nothing, and a
// stream of the most urgent priority freed nine; with 16, no call returned that gave
// another stream of the context work.
//
// Errors: [ErrInvalidValue] for an address that is not aligned or that the device
// may not read; [ErrNotSupported] for a condition that the device lacks, and for
// all of them where [Device.SupportsMemOps] is false: before CUDA 11.7, unless
// the kernel module was loaded with NVreg_EnableStreamMemOPs=1.
func (s *Stream) WaitValue32(p DevicePtr, value uint32, flags WaitFlags) error {
	return queueWord(s, "cuStreamWaitValue32", sys.Caller.CuStreamWaitValue32_v2, sys.Caller.CuStreamWaitValue32, p, value, uint32(flags))
}

// WaitValue64 is [Stream.WaitValue32] for a word of eight bytes
// (cuStreamWaitValue64).
func (s *Stream) WaitValue64(p DevicePtr, value uint64, flags WaitFlags) error {
	return queueWord(s, "cuStreamWaitValue64", sys.Caller.CuStreamWaitValue64_v2, sys.Caller.CuStreamWaitValue64, p, value, uint32(flags))
}

// WriteValue32 queues a write of the word at p, aligned to its size, after the
// work that s has, and returns before it is done (cuStreamWriteValue32). A reader
// that sees the word sees all that the work wrote. The memory has to stay mapped
// until then: a write to memory that is gone, or through a read-only mapping,
// loses the context, with [ErrLaunchFailed]. Errors are those of
// [Stream.WaitValue32].
func (s *Stream) WriteValue32(p DevicePtr, value uint32, flags WriteFlags) error {
	return queueWord(s, "cuStreamWriteValue32", sys.Caller.CuStreamWriteValue32_v2, sys.Caller.CuStreamWriteValue32, p, value, uint32(flags))
}

// WriteValue64 is [Stream.WriteValue32] for a word of eight bytes
// (cuStreamWriteValue64).
func (s *Stream) WriteValue64(p DevicePtr, value uint64, flags WriteFlags) error {
	return queueWord(s, "cuStreamWriteValue64", sys.Caller.CuStreamWriteValue64_v2, sys.Caller.CuStreamWriteValue64, p, value, uint32(flags))
}

// queueWord queues a wait for a word, or a write, with the second ABI or, where the driver lacks that,
// the first.
func queueWord[T uint32 | uint64](s *Stream, op string, second, first func(sys.Caller, sys.CUstream, sys.CUdeviceptr, T, uint32) sys.CUresult, p DevicePtr, value T, flags uint32) error {
	return s.run(op, func(call sys.Caller, h sys.CUstream) sys.CUresult {
		return older(second(call, h, sys.CUdeviceptr(p), value, flags), func() sys.CUresult {
			return first(call, h, sys.CUdeviceptr(p), value, flags)
		})
	})
}

// A MemOp is one operation of [Stream.BatchMemOps], made by WaitOp32 and the
// like.
type MemOp struct{ params sys.CUstreamBatchMemOpParams }

// WaitOp32 is [Stream.WaitValue32] in a batch.
func WaitOp32(p DevicePtr, value uint32, flags WaitFlags) (op MemOp) {
	w := op.wait(sys.CU_STREAM_MEM_OP_WAIT_VALUE_32, p, flags)
	*w.Value() = value
	return op
}

// WaitOp64 is [Stream.WaitValue64] in a batch.
func WaitOp64(p DevicePtr, value uint64, flags WaitFlags) (op MemOp) {
	w := op.wait(sys.CU_STREAM_MEM_OP_WAIT_VALUE_64, p, flags)
	*w.Value64() = value
	return op
}

// WriteOp32 is [Stream.WriteValue32] in a batch.
func WriteOp32(p DevicePtr, value uint32, flags WriteFlags) (op MemOp) {
	w := op.write(sys.CU_STREAM_MEM_OP_WRITE_VALUE_32, p, flags)
	*w.Value() = value
	return op
}

// WriteOp64 is [Stream.WriteValue64] in a batch.
func WriteOp64(p DevicePtr, value uint64, flags WriteFlags) (op MemOp) {
	w := op.write(sys.CU_STREAM_MEM_OP_WRITE_VALUE_64, p, flags)
	*w.Value64() = value
	return op
}

// FlushOp does for the operations after it what [WaitFlush] does for a wait.
func FlushOp() (op MemOp) {
	op.params.FlushRemoteWrites().Operation = sys.CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES
	return op
}

// BarrierOp orders the memory accesses before and after it (CUDA 11.7).
func BarrierOp(scope BarrierScope) (op MemOp) {
	b := op.params.MemoryBarrier()
	b.Operation, b.Flags = sys.CU_STREAM_MEM_OP_BARRIER, uint32(scope)
	return op
}

func (op *MemOp) wait(typ sys.CUstreamBatchMemOpType, p DevicePtr, flags WaitFlags) *sys.CUstreamMemOpWaitValueParams {
	w := op.params.WaitValue()
	w.Operation, w.Address, w.Flags = typ, sys.CUdeviceptr(p), uint32(flags)
	return w
}

func (op *MemOp) write(typ sys.CUstreamBatchMemOpType, p DevicePtr, flags WriteFlags) *sys.CUstreamMemOpWriteValueParams {
	w := op.params.WriteValue()
	w.Operation, w.Address, w.Flags = typ, sys.CUdeviceptr(p), uint32(flags)
	return w
}

// BatchMemOps queues all of ops in order or, with an error, none, for little more
// than the cost of one (cuStreamBatchMemOp). It takes fewer than 256, and does
// not allocate for a slice of them.
func (s *Stream) BatchMemOps(ops ...MemOp) error {
	var first *sys.CUstreamBatchMemOpParams
	if len(ops) > 0 {
		first = &ops[0].params // a MemOp is nothing but its params
	}
	n := uint32(len(ops))
	return s.run("cuStreamBatchMemOp", func(call sys.Caller, h sys.CUstream) sys.CUresult {
		return older(call.CuStreamBatchMemOp_v2(h, n, first, 0), func() sys.CUresult {
			return call.CuStreamBatchMemOp(h, n, first, 0)
		})
	})
}

// SupportsMemOps reports whether streams can wait for and write values. From CUDA
// 11.7 on they always can.
func (dev *Device) SupportsMemOps() (bool, error) {
	if dev.hasMemOps2() {
		return true, nil
	}
	return dev.supports(AttributeCanUseStreamMemOpsV1)
}

// SupportsMemOps64 reports whether [Stream.WaitValue64] and the like work.
func (dev *Device) SupportsMemOps64() (bool, error) {
	if dev.hasMemOps2() {
		return dev.supports(AttributeCanUse64BitStreamMemOps)
	}
	return dev.supports(AttributeCanUse64BitStreamMemOpsV1)
}

// SupportsWaitNOR reports whether [WaitNOR] works.
func (dev *Device) SupportsWaitNOR() (bool, error) {
	if dev.hasMemOps2() {
		return dev.supports(AttributeCanUseStreamWaitValueNor)
	}
	return dev.supports(AttributeCanUseStreamWaitValueNorV1)
}

// SupportsWaitFlush reports whether [WaitFlush] and [FlushOp] work.
func (dev *Device) SupportsWaitFlush() (bool, error) {
	return dev.supports(AttributeCanFlushRemoteWrites)
}

// hasMemOps2 reports whether the driver has the second ABI of the functions,
// which has attributes of its own.
func (dev *Device) hasMemOps2() bool { return dev.drv.call.Library().Has("cuStreamWaitValue32_v2") }
