package vmm

import (
	"errors"
	"runtime"
	"sync"

	"github.com/gpufd/gpufd/cu"
)

// A View is the memory of a buffer mapped in one piece of address space with
// rights of its own. The same memory may have several. The caller owns it; it
// holds the memory also after the buffer's Close. One that is lost without
// Close is reported and stays mapped.
type View struct {
	inner *view
	dev   *cu.Device
	room  *Reservation // that was given, so that it is not collected before
}

type view struct {
	res *reservation

	mu     sync.Mutex
	maps   []*mapping
	access cu.Access
	size   uint64 // bytes mapped
}

// newView reserves capacity bytes; nothing is mapped yet. The caller calls watch
// before it returns.
func newView(dev *cu.Device, capacity uint64, o *options) (*View, error) {
	if o.room != nil {
		return &View{&view{res: o.room.inner}, dev, o.room}, nil
	}
	var res *reservation
	err := o.step("reserve", func(s *Step) (err error) {
		if res, err = reserve(dev.Driver(), capacity); err == nil {
			s.Ptr, s.Size = res.ptr, capacity
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &View{&view{res: res}, dev, nil}, nil
}

// watch has the view reported if it is lost, as its caller's caller's.
func (v *View) watch() {
	stack := cu.Here(1)
	runtime.AddCleanup(v, func(in *view) { reportLost(lost{stack, in.maps}) }, v.inner)
}

// add maps chunks behind what is mapped already and gives dev access. If it
// fails, the view is as before.
func (v *View) add(chunks []*Allocation, a cu.Access, o *options) error {
	in := v.inner
	in.mu.Lock()
	defer in.mu.Unlock()
	old, size := len(in.maps), in.size
	err := o.step("map", func(s *Step) error {
		s.Ptr = in.res.ptr.Add(size)
		for _, c := range chunks {
			m, err := in.res.mapAt(in.size, c)
			if err != nil {
				return err
			}
			in.maps = append(in.maps, m)
			in.size += m.size
		}
		s.Size, s.Chunks = in.size-size, len(chunks)
		return nil
	})
	if err == nil {
		err = o.step("access", func(s *Step) error {
			s.Ptr, s.Size, s.Access = in.res.ptr.Add(size), in.size-size, a
			return in.res.setAccess(size, in.size-size, a, v.dev)
		})
	}
	if err != nil {
		err = errors.Join(err, in.drop(old))
		return err
	}
	in.access = a
	return nil
}

// drop unmaps all but the first n mappings, the last one first. If that fails
// what is left can be dropped later. It runs with mu held.
func (in *view) drop(n int) error {
	for len(in.maps) > n {
		last := in.maps[len(in.maps)-1]
		if err := last.close(); err != nil {
			return err
		}
		in.maps = in.maps[:len(in.maps)-1]
		in.size -= last.size
	}
	return nil
}

// Ptr is the view's first address.
func (v *View) Ptr() cu.DevicePtr { return v.inner.res.ptr }

// Address is Ptr, or [cu.ErrClosed] after Close.
func (v *View) Address() (cu.DevicePtr, error) { return openAt(v.Ptr(), v.Mapped() == 0) }

// Mapped is how many bytes from Ptr on are mapped.
func (v *View) Mapped() uint64 {
	v.inner.mu.Lock()
	defer v.inner.mu.Unlock()
	return v.inner.size
}

// Access is what the memory's device may do with the view.
func (v *View) Access() cu.Access {
	v.inner.mu.Lock()
	defer v.inner.mu.Unlock()
	return v.inner.access
}

// Close unmaps the view and frees its address space. It does not wait for
// kernels that use it. A second Close does nothing.
func (v *View) Close() error {
	if v == nil {
		return nil
	}
	defer runtime.KeepAlive(v)
	v.inner.mu.Lock()
	defer v.inner.mu.Unlock()
	if err := v.inner.drop(0); err != nil {
		return err
	}
	return v.inner.res.close()
}
