package share

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/mapped"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/vmm"
)

// attachedMemory is memory of another process that is open here: a buffer or legacy memory.
type attachedMemory interface {
	Ptr() cu.DevicePtr
	Size() uint64
	Access() cu.Access
	Device() *cu.Device
	Release(context.Context) error
	CloseNow() error
}

// open maps the offered memory, or opens it by its handle, unless it is mapped already.
func (a *attaching) open() (err error) {
	if a.resumes != nil {
		return a.checkResumed()
	}
	if a.offer.Legacy != nil {
		m, err := a.openHandle()
		if m != nil {
			a.memory = m
		}
		return err
	}
	buf, err := a.mapBuffer()
	if buf != nil {
		a.memory = buf
	}
	return err
}

// mapBuffer maps the memory.
func (a *attaching) mapBuffer() (*vmm.Buffer, error) {
	m, dev := a.offer, a.dev
	if a.opts.AnyDevice && m.Memory.Kind == dev.Driver().Kind() {
		found, err := dev.Driver().DeviceByUUID(m.Memory.Device)
		if err != nil {
			return nil, fmt.Errorf("the memory is on a device that is not visible to this process, or is hidden from it by %s: %w", hider(m.Memory.Kind), err)
		}
		dev = found
	}
	opts, err := a.peers(dev)
	if err != nil {
		return nil, err
	}
	if a.opts.Access > m.Access {
		return nil, fmt.Errorf("%w: %s asked for, %s offered", serve.ErrUnexpected, a.opts.Access, m.Access)
	}
	opts = append(opts, vmm.WithAccess(a.opts.Access), vmm.WithStack(a.made), vmm.WithReservation(cmp.Or(a.room, a.opts.Reservation)))
	if a.opts.Reoffer {
		opts = append(opts, vmm.WithReexport())
	}
	return vmm.Import(dev, m.Memory, a.files, opts...)
}

// peers lets the device that was asked for use memory of dev, if PeerAccess is set and
// dev is another device.
func (a *attaching) peers(dev *cu.Device) ([]vmm.ImportOption, error) {
	if !a.opts.PeerAccess || dev.UUID() == a.dev.UUID() {
		return nil, nil
	}
	can, err := a.dev.CanAccessPeer(dev)
	if err == nil && !can {
		err = fmt.Errorf("%w: device %s cannot reach the memory of %s; attach on that one, and copy", ErrNoPeer, a.dev, dev)
	}
	return []vmm.ImportOption{vmm.WithPeers(a.dev)}, err
}

// hider is what can hide a device from one process and not from another.
func hider(k cu.Kind) string {
	if k == cu.Soft {
		return "CUDA_VISIBLE_DEVICES or another GPUFD_SOFT_DIR, whose devices are others"
	}
	return "CUDA_VISIBLE_DEVICES or its container"
}

// opened is legacy memory of another process.
type opened struct {
	ctx  *cu.Context // a reference of its own to the primary context
	mem  *cu.IPCMemory
	ptr  cu.DevicePtr
	size uint64

	uncount sync.Once
}

func (m *opened) Ptr() cu.DevicePtr  { return m.ptr }
func (m *opened) Size() uint64       { return m.size }
func (m *opened) Access() cu.Access  { return cu.ReadWrite }
func (m *opened) Device() *cu.Device { return m.ctx.Device() }

func (m *opened) Release(ctx context.Context) error {
	if err := m.ctx.Device().Driver().WaitToClose(ctx, fmt.Sprintf("share: the legacy memory at %s", m.ptr)); err != nil {
		return err
	}
	return m.CloseNow()
}

// CloseNow waits all the same: the driver does, for all work of the context (C41). It may be called again.
func (m *opened) CloseNow() error {
	if err := m.mem.Close(); err != nil {
		return err
	}
	m.uncount.Do(func() { mapped.Add(-1) })
	return m.ctx.Close()
}

// openHandle opens the memory in the primary context of its device, or of dev if its device
// is hidden here and any will do. The producer confirms later that this is the offered
// memory: by an old handle, a driver may open new memory at the old address.
func (a *attaching) openHandle() (*opened, error) {
	d := a.offer.Memory
	dev, hidden, err := a.opener(d)
	if err != nil {
		return nil, err
	}
	ctx, err := dev.PrimaryContext()
	if err != nil {
		return nil, err
	}
	mem, err := ctx.OpenIPC(a.offer.Legacy.Handle)
	if err != nil && hidden {
		err = fmt.Errorf("the memory is on device %s, which is not visible to this process, or is hidden from it by %s: %w", d.Device, hider(d.Kind), err)
	}
	if err != nil {
		return nil, errors.Join(err, ctx.Close())
	}
	mapped.Add(1)
	m := &opened{ctx: ctx, mem: mem, ptr: mem.Ptr().Add(a.offer.Legacy.Offset), size: d.Size}
	if err := m.check(d); err != nil {
		return nil, errors.Join(err, m.CloseNow())
	}
	return m, nil
}

// check compares the size of the opened memory with the offer. The driver cannot tell which
// device it is on: it says the context's.
func (m *opened) check(d vmm.Descriptor) error {
	if have := m.mem.Size(); have != 0 && have < d.ChunkSize {
		return &vmm.DescriptorError{Field: "allocation size", Reason: fmt.Sprintf("is %d; the memory that was opened has %d bytes", d.ChunkSize, have)}
	}
	return nil
}

// opener returns the device whose context opens the memory, and whether the memory's own
// device is hidden here.
func (a *attaching) opener(d vmm.Descriptor) (opener *cu.Device, hidden bool, err error) {
	dev := a.dev
	switch {
	case d.Kind != dev.Driver().Kind():
		return nil, false, fmt.Errorf("%w: the producer uses the %q driver and this process %q; run both with the same one", vmm.ErrKind, d.Kind, dev.Driver().Kind())
	case d.Device == dev.UUID():
		return dev, false, nil
	case !a.opts.AnyDevice:
		return nil, false, fmt.Errorf("%w: it is on %s, and device %s was asked for", vmm.ErrDevice, d.Device, dev)
	}
	if found, err := dev.Driver().DeviceByUUID(d.Device); err == nil {
		return found, false, nil
	}
	return dev, true, nil // the driver finds it, and gives dev access to it
}
