package vmm

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/gpufd/gpufd/cu"
)

// A View maps the memory of a buffer in one piece of address space, with rights
// of its own. The same memory may have several. The caller owns it; it keeps the
// memory also after the buffer's Close. A View that is lost without Close is
// reported and stays mapped.
type View struct {
	inner *view // nil in a View that NewView has not made
}

// view is chunks of equal size, mapped side by side.
type view struct {
	res    *reservation
	own    reservation // res, unless that is the caller's
	dev    *cu.Device
	peers  []*cu.Device // that may use it, too
	chunk  uint64       // bytes of each
	made   cu.Stack
	beside *atomic.Int64 // counts the views of the buffer, or nil
	closed atomic.Bool

	mu     sync.Mutex
	count  int // of chunks that are mapped
	access cu.Access
}

// reserve reserves capacity bytes, or borrows the room that was given. Nothing is
// mapped yet.
func (v *view) reserve(capacity uint64, room *Reservation) error {
	if room != nil {
		v.res = room.inner
		return nil
	}
	v.res = &v.own
	return v.own.reserve(v.dev.Driver(), capacity)
}

// add maps chunks behind what is mapped already and gives the device access. If it
// fails, the view is as before.
func (v *view) add(chunks []*Allocation, a cu.Access) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	old := v.count
	err := v.mapAll(chunks)
	if err == nil {
		err = v.setAccess(old, a)
	}
	if err != nil {
		return errors.Join(err, v.drop(old))
	}
	v.access = a
	return nil
}

func (v *view) mapAll(chunks []*Allocation) error {
	for _, c := range chunks {
		if err := v.res.mapAt(v.size(), c); err != nil {
			return err
		}
		v.count++
	}
	return nil
}

// setAccess gives the device access to all but the first n chunks.
func (v *view) setAccess(n int, a cu.Access) error {
	offset := uint64(n) * v.chunk
	return v.res.setAccess(offset, v.size()-offset, a, append(v.peers[:len(v.peers):len(v.peers)], v.dev)...)
}

// size returns how many bytes are mapped.
func (v *view) size() uint64 { return uint64(v.count) * v.chunk }

// drop unmaps all but the first n chunks, in one call. If that fails, they can be
// dropped later. It runs with mu held.
func (v *view) drop(n int) error {
	if v.count <= n {
		return nil
	}
	offset := uint64(n) * v.chunk
	if err := v.res.unmap(offset, v.size()-offset); err != nil {
		return err
	}
	v.count = n
	return nil
}

func (v *view) ptr() cu.DevicePtr {
	if v.closed.Load() {
		return 0
	}
	return v.res.ptr
}

func (v *view) mapped() uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.size()
}

// close may be called again.
func (v *view) close() error {
	v.closed.Store(true)
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.drop(0); err != nil {
		return err
	}
	if v.beside != nil {
		v.beside.Add(-1)
		v.beside = nil
	}
	if v.res != &v.own {
		return nil // its owner closes it
	}
	return v.own.close()
}

// lost runs when the garbage collector finds a lost view.
func (v *view) lost() {
	if size := v.mapped(); size > 0 {
		v.res.reportLost(0, size, v.made)
	}
}

// Ptr returns the view's first address, 0 after Close.
func (v *View) Ptr() cu.DevicePtr {
	if v == nil || v.inner == nil {
		return 0
	}
	return v.inner.ptr()
}

// Mapped returns how many bytes are mapped, from Ptr on.
func (v *View) Mapped() uint64 {
	if v == nil || v.inner == nil {
		return 0
	}
	return v.inner.mapped()
}

// Access returns what the memory's device may do with the view.
func (v *View) Access() cu.Access {
	if v == nil || v.inner == nil {
		return cu.NoAccess
	}
	v.inner.mu.Lock()
	defer v.inner.mu.Unlock()
	return v.inner.access
}
