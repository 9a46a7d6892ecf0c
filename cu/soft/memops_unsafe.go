package soft

import (
	"sync/atomic"
	"unsafe"

	"github.com/gpufd/gpufd/cu/sys"
)

// loadWord reads the aligned word of four or eight bytes that b is, at once.
func loadWord(b []byte) uint64 {
	p := unsafe.Pointer(unsafe.SliceData(b))
	if len(b) == 4 {
		return uint64(atomic.LoadUint32((*uint32)(p)))
	}
	return atomic.LoadUint64((*uint64)(p))
}

// storeWord writes the aligned word that b is, at once.
func storeWord(b []byte, v uint64) {
	p := unsafe.Pointer(unsafe.SliceData(b))
	if len(b) == 4 {
		atomic.StoreUint32((*uint32)(p), uint32(v))
		return
	}
	atomic.StoreUint64((*uint64)(p), v)
}

// addWord adds one to the aligned word of eight bytes that b is, and returns the
// sum.
func addWord(b []byte) uint64 {
	return atomic.AddUint64((*uint64)(unsafe.Pointer(unsafe.SliceData(b))), 1)
}

// raiseWord makes the aligned word of eight bytes that b is at least v.
func raiseWord(b []byte, v uint64) {
	p := (*uint64)(unsafe.Pointer(unsafe.SliceData(b)))
	for {
		old := atomic.LoadUint64(p)
		if old >= v || atomic.CompareAndSwapUint64(p, old, v) {
			return
		}
	}
}

// memOpsAt returns the n operations at p.
func memOpsAt(p *sys.CUstreamBatchMemOpParams, n uint32) []sys.CUstreamBatchMemOpParams {
	return unsafe.Slice(p, n)
}
