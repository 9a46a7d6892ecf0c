package soft

import (
	"fmt"
	"runtime"
	"time"

	"github.com/gpufd/gpufd/cu/sys"
)

// A memOp is a wait for a word in memory, or the writing of one.
type memOp struct {
	where operand
	value uint64
	flags uint32
	write bool
}

// maxMemOps is how many operations a batch may have.
const maxMemOps = 255

// memOps2 is the CUDA version of the second ABI. The first ABI works only before
// it: a later H200 driver refuses it.
const memOps2 = 11070

// The pauses of a stream that waits for a word: none at first, then doubling
// between these. Nothing tells it of a write, which may come from another
// process. If many streams wait, the pauses are longer and end together, so that
// all of them take little time.
const (
	waitSpins = 64
	waitMin   = 20 * time.Microsecond
	waitMax   = time.Millisecond
	fewWaits  = 16 // streams that look as often as a single one
	perPause  = 2  // more of them have all pause for waitMax longer: all together they look 2,000 times a second
)

func (m *machine) cuStreamWaitValue32(h sys.CUstream, p sys.CUdeviceptr, v, flags uint32) sys.CUresult {
	return m.oldMemOps(h, wait(p, 4, uint64(v), flags))
}

func (m *machine) cuStreamWaitValue32_v2(h sys.CUstream, p sys.CUdeviceptr, v, flags uint32) sys.CUresult {
	return m.memOps(h, wait(p, 4, uint64(v), flags))
}

func (m *machine) cuStreamWaitValue64(h sys.CUstream, p sys.CUdeviceptr, v uint64, flags uint32) sys.CUresult {
	return m.oldMemOps(h, wait(p, 8, v, flags))
}

func (m *machine) cuStreamWaitValue64_v2(h sys.CUstream, p sys.CUdeviceptr, v uint64, flags uint32) sys.CUresult {
	return m.memOps(h, wait(p, 8, v, flags))
}

func (m *machine) cuStreamWriteValue32(h sys.CUstream, p sys.CUdeviceptr, v, flags uint32) sys.CUresult {
	return m.oldMemOps(h, write(p, 4, uint64(v), flags))
}

func (m *machine) cuStreamWriteValue32_v2(h sys.CUstream, p sys.CUdeviceptr, v, flags uint32) sys.CUresult {
	return m.memOps(h, write(p, 4, uint64(v), flags))
}

func (m *machine) cuStreamWriteValue64(h sys.CUstream, p sys.CUdeviceptr, v uint64, flags uint32) sys.CUresult {
	return m.oldMemOps(h, write(p, 8, v, flags))
}

func (m *machine) cuStreamWriteValue64_v2(h sys.CUstream, p sys.CUdeviceptr, v uint64, flags uint32) sys.CUresult {
	return m.memOps(h, write(p, 8, v, flags))
}

func wait(p sys.CUdeviceptr, size uintptr, v uint64, flags uint32) memOp {
	return memOp{where: operand{extent: line(size), addr: uintptr(p)}, value: v, flags: flags}
}

func write(p sys.CUdeviceptr, size uintptr, v uint64, flags uint32) memOp {
	return memOp{where: operand{extent: line(size), addr: uintptr(p)}, value: v, flags: flags, write: true}
}

func (m *machine) cuStreamBatchMemOp(h sys.CUstream, n uint32, params *sys.CUstreamBatchMemOpParams, flags uint32) sys.CUresult {
	return m.batch(h, n, params, flags, m.oldMemOps)
}

func (m *machine) cuStreamBatchMemOp_v2(h sys.CUstream, n uint32, params *sys.CUstreamBatchMemOpParams, flags uint32) sys.CUresult {
	return m.batch(h, n, params, flags, m.memOps)
}

// batch queues the operations at params, which may be null only for none.
func (m *machine) batch(h sys.CUstream, n uint32, params *sys.CUstreamBatchMemOpParams, flags uint32, queue func(sys.CUstream, ...memOp) sys.CUresult) sys.CUresult {
	if n > 0 && params == nil || n > maxMemOps || flags != 0 {
		return m.refuse(h, sys.CUDA_ERROR_INVALID_VALUE)
	}
	var ops []memOp
	for _, p := range memOpsAt(params, n) {
		o, r := memOpOf(&p)
		if r != sys.CUDA_SUCCESS {
			return m.refuse(h, r)
		}
		if o != nil {
			ops = append(ops, *o)
		}
	}
	return queue(h, ops...)
}

// memOpOf reads an operation of a batch. A barrier does nothing, since words are
// read and written in order anyway.
func memOpOf(p *sys.CUstreamBatchMemOpParams) (*memOp, sys.CUresult) {
	w := p.WaitValue() // a write looks the same
	var o memOp
	switch *p.Operation() {
	case sys.CU_STREAM_MEM_OP_WAIT_VALUE_32:
		o = wait(w.Address, 4, uint64(*w.Value()), w.Flags)
	case sys.CU_STREAM_MEM_OP_WAIT_VALUE_64:
		o = wait(w.Address, 8, *w.Value64(), w.Flags)
	case sys.CU_STREAM_MEM_OP_WRITE_VALUE_32:
		o = write(w.Address, 4, uint64(*w.Value()), w.Flags)
	case sys.CU_STREAM_MEM_OP_WRITE_VALUE_64:
		o = write(w.Address, 8, *w.Value64(), w.Flags)
	case sys.CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
		return nil, sys.CUDA_ERROR_NOT_SUPPORTED // as the attribute says
	case sys.CU_STREAM_MEM_OP_BARRIER:
		if p.MemoryBarrier().Flags <= uint32(sys.CU_STREAM_MEMORY_BARRIER_TYPE_GPU) {
			return nil, sys.CUDA_SUCCESS
		}
		return nil, sys.CUDA_ERROR_INVALID_VALUE
	default:
		return nil, sys.CUDA_ERROR_INVALID_VALUE
	}
	return &o, sys.CUDA_SUCCESS
}

// oldMemOps is memOps for the first ABI.
func (m *machine) oldMemOps(h sys.CUstream, ops ...memOp) sys.CUresult {
	if m.config().version >= memOps2 {
		return m.refuse(h, sys.CUDA_ERROR_NOT_SUPPORTED)
	}
	for i := range ops {
		if ops[i].write { // it may come early, and does not
			ops[i].flags &^= uint32(sys.CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)
		}
	}
	return m.memOps(h, ops...)
}

// memOps queues operations, all or none.
func (m *machine) memOps(h sys.CUstream, ops ...memOp) sys.CUresult {
	return with(m, m.findStream, h, func(s *stream) sys.CUresult {
		for i := range ops {
			if !m.reaches(s.ctx, ops[i].where.addr) {
				return sys.CUDA_ERROR_INVALID_VALUE
			}
			if r := m.validMemOp(&ops[i], m.number(s.ctx.dev)); r != sys.CUDA_SUCCESS {
				return r
			}
		}
		for i := range ops {
			ops[i].where.pin()
		}
		m.enqueue(s, &op{
			traits:  traits{kind: sys.CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, shape: memOpForm(ops)},
			run:     func() sys.CUresult { return m.doMemOps(s.ctx, ops) },
			release: func() { endMemOps(ops) },
		})
		return sys.CUDA_SUCCESS
	})
}

// memOpForm returns what an update of a graph may not change about operations.
func memOpForm(ops []memOp) (form string) {
	for _, o := range ops {
		form += fmt.Sprint(o.write, o.where.width, " ")
	}
	return form
}

// endMemOps unpins host memory. The machine is locked.
func endMemOps(ops []memOp) {
	for i := range ops {
		ops[i].where.unpin()
	}
}

// validMemOp requires a word that is aligned and that the device may read now.
// Whether the device may write it shows later (D20b).
func (m *machine) validMemOp(o *memOp, dev sys.CUdevice) sys.CUresult {
	known := uint32(sys.CU_STREAM_WAIT_VALUE_NOR)
	switch {
	case o.write:
		known = 0
	case o.flags&uint32(sys.CU_STREAM_WAIT_VALUE_FLUSH) != 0:
		return sys.CUDA_ERROR_NOT_SUPPORTED // as the attribute says
	}
	where, ok := m.operand(onDevice(sys.CUdeviceptr(o.where.addr)), o.where.extent, dev, false)
	if !ok || where.addr%where.width != 0 || o.flags&^known != 0 {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	o.where = where
	return sys.CUDA_SUCCESS
}

// doMemOps does operations in order.
func (m *machine) doMemOps(ctx *context, ops []memOp) sys.CUresult {
	for i := range ops {
		if r := m.doMemOp(ctx, &ops[i]); r != sys.CUDA_SUCCESS {
			return r
		}
	}
	return sys.CUDA_SUCCESS
}

// doMemOp writes a word, or reads one until it is as it should be. The loss of
// the context frees its waiting streams.
func (m *machine) doMemOp(ctx *context, o *memOp) sys.CUresult {
	m.waiting.Add(1)
	defer m.waiting.Add(-1)
	for i, pause := 0, waitMin; ; i++ {
		done, r := m.tryMemOp(ctx, o)
		if done || r != sys.CUDA_SUCCESS {
			return r
		}
		if i < waitSpins {
			runtime.Gosched()
			continue
		}
		longest := waitMax * time.Duration(1+max(0, m.waiting.Load()-fewWaits)/perPause)
		if pause = min(pause, longest); longest > waitMax && pause == longest {
			time.Sleep(pause - time.Duration(time.Now().UnixNano())%longest)
			continue
		}
		time.Sleep(pause)
		pause = min(2*pause, longest)
	}
}

// tryMemOp does an operation if it can be done now. Memory that is no longer
// accessible, or whose file somebody cut short, fails the work (D20b).
func (m *machine) tryMemOp(ctx *context, o *memOp) (done bool, r sys.CUresult) {
	m.mu.Lock()
	v, ok := m.view(&o.where, o.write)
	r = ctx.sticky
	m.mu.Unlock()
	if ok && r == sys.CUDA_SUCCESS {
		_, faulted := touch(func() { done = o.touch(v[0].bytes) })
		ok = !faulted
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dropView(v)
	if !ok {
		return false, m.die(sys.CUDA_ERROR_LAUNCH_FAILED, o.fault(m))
	}
	return done, r
}

// touch writes the word, or reports whether it meets the condition.
func (o *memOp) touch(word []byte) (done bool) {
	if o.write {
		storeWord(word, o.value)
		return true
	}
	return met(o.flags, loadWord(word), o.value, 8*o.where.width)
}

// met reports whether a word of so many bits fulfils a condition.
func met(condition uint32, word, value uint64, bits uintptr) bool {
	above := 64 - bits
	switch sys.CUstreamWaitValue_flags(condition) {
	case sys.CU_STREAM_WAIT_VALUE_GEQ:
		return int64((word-value)<<above) >= 0
	case sys.CU_STREAM_WAIT_VALUE_EQ:
		return word == value
	case sys.CU_STREAM_WAIT_VALUE_AND:
		return word&value != 0
	}
	return ^(word|value)<<above != 0
}
