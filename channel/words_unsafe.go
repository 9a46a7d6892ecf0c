package channel

import (
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// words is memory that another process writes, too. It is read and written one word at a time, at
// offsets that are multiples of eight.
//
// The protocol needs the loads and stores of a process to take effect in the order of the program.
// sync/atomic promises that on every processor: its operations are sequentially consistent, on arm64
// by instructions that acquire and release. Nothing else orders them, so no word may be read or
// written without it, but for those that put writes. The models (model_test.go,
// modelstream_test.go) rely on that order, too: each of their steps is one such load or store.
type words struct{ b []byte }

func (w words) at(off int) *uint64   { return (*uint64)(unsafe.Pointer(&w.b[off : off+8][0])) }
func (w words) bell(off int) *uint32 { return (*uint32)(unsafe.Pointer(&w.b[off : off+4][0])) }

func (w words) load(off int) uint64     { return atomic.LoadUint64(w.at(off)) }
func (w words) store(off int, v uint64) { atomic.StoreUint64(w.at(off), v) }

// put is a store that takes effect before the next one of store, and in no order with other puts. It
// does not wait until the word's line of the cache has come.
func (w words) put(off int, v uint64) { *w.at(off) = v }

func (w words) swap(off int, v uint64) uint64 { return atomic.SwapUint64(w.at(off), v) }

// ring wakes those who sleep at a bell. Mostly nobody does, which costs a load.
func (w words) ring(off int) {
	bell := w.bell(off)
	if atomic.LoadUint32(bell) == 0 {
		return
	}
	atomic.StoreUint32(bell, 0)
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(bell)), futexWake, 1<<30, 0, 0, 0)
}

// sleep waits at a bell until it rings, at most for d, unless ready says that there is
// nothing to wait for. The bell is silent again then, so that nobody rings in vain.
func (w words) sleep(off int, d time.Duration, ready func() bool) {
	bell := w.bell(off)
	atomic.StoreUint32(bell, 1)
	defer atomic.StoreUint32(bell, 0)
	if ready() {
		return
	}
	t := unix.NsecToTimespec(int64(d))
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(bell)), futexWait, 1, uintptr(unsafe.Pointer(&t)), 0, 0)
}

// Operations of futex(2). The word is in memory of two processes, so it is not private.
const (
	futexWait = 0
	futexWake = 1
)
