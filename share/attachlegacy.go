package share

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// opened is legacy memory of another process.
type opened struct {
	ctx  *cu.Context // a reference of its own to the primary context
	mem  *cu.IPCMemory
	ptr  cu.DevicePtr
	size uint64
}

func (m *opened) Ptr() cu.DevicePtr  { return m.ptr }
func (m *opened) Size() uint64       { return m.size }
func (m *opened) Access() cu.Access  { return ReadWrite }
func (m *opened) Device() *cu.Device { return m.ctx.Device() }

// Close may be called again and on nil.
func (m *opened) Close() error {
	if m == nil {
		return nil
	}
	return errors.Join(m.mem.Close(), m.ctx.Close())
}

// openLegacy opens what was offered, and then has the producer confirm that it is
// that: the handle alone does not say so, because a driver may open new memory at the
// old address by it. On error it leaves nothing, and has told the producer, after the
// memory was closed: the producer may free it then.
func (o *attachOptions) openLegacy(ctx context.Context, p *patience, l link, msg offer, dev *cu.Device) (*opened, error) {
	m, err := o.openHandle(msg, dev)
	if err != nil {
		told := l.part(attachFailed(err))
		if errors.Is(told, sock.ErrPeerLost) { // which is why there is nothing to be opened
			err = errors.Join(err, told)
		}
		return nil, err
	}
	if err := confirmed(ctx, p, l, msg); err != nil {
		return nil, l.giveUp(errors.Join(err, m.Close()))
	}
	return m, nil
}

// confirmed says that the memory was opened, when its data is there, and waits until
// the producer has confirmed it.
func confirmed(ctx context.Context, p *patience, l link, msg offer) (err error) {
	answer := l.mapped(ctx, msg)
	if msg.pending {
		err = awaitData(p, l, msg.desc.Generation, answer)
	} else {
		err = answer()
	}
	if err != nil {
		return err
	}
	return awaitConfirmation(p, l, msg.desc.Generation)
}

// awaitConfirmation waits until the producer says that the memory is what it offered.
func awaitConfirmation(p *patience, l link, generation uint64) error {
	err := hearThat(p, l, confirm{generation}, "where a confirmation belongs")
	if errors.Is(err, sock.ErrPeerLost) {
		return fmt.Errorf("the producer closed the connection before it confirmed that the memory is what it offered: %w", err)
	}
	return err
}

// openHandle opens the memory in the primary context of its device, or of dev if that
// is hidden here and any will do.
func (o *attachOptions) openHandle(msg offer, dev *cu.Device) (*opened, error) {
	dev, hidden, err := o.opener(msg.desc, dev)
	if err != nil {
		return nil, err
	}
	ctx, err := dev.PrimaryContext()
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	mem, err := ctx.OpenIPC(msg.legacy.Handle)
	if err != nil && hidden {
		err = fmt.Errorf("the memory is on device %s, which is not visible to this process, or is hidden from it by %s: %w", msg.desc.Device, hider(msg.desc.Kind), err)
	}
	if err != nil {
		return nil, errors.Join(err, ctx.Close())
	}
	m := &opened{ctx, mem, mem.Ptr().Add(msg.legacy.Offset), msg.desc.Size}
	if err := m.check(msg.desc); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	o.steps(vmm.Step{Op: "open", Ptr: mem.Ptr(), Size: msg.desc.ChunkSize, Access: ReadWrite, Took: time.Since(begin)})
	return m, nil
}

// check compares what was opened with what was offered, as far as the driver knows it:
// it takes all memory that a context has opened for that of the context's device.
func (m *opened) check(d vmm.Descriptor) error {
	if have := m.mem.Size(); have != 0 && have < d.ChunkSize {
		return &vmm.DescriptorError{Field: "allocation size", Reason: fmt.Sprintf("is %d; the memory that was opened has %d bytes", d.ChunkSize, have)}
	}
	return nil
}

// opener is the device whose context opens the memory, and whether the one that it is
// on is hidden here.
func (o *attachOptions) opener(d vmm.Descriptor, dev *cu.Device) (opener *cu.Device, hidden bool, err error) {
	switch {
	case d.Kind != dev.Driver().Kind():
		return nil, false, fmt.Errorf("%w: the producer uses the %q driver and this process %q; run both with the same one", vmm.ErrKind, d.Kind, dev.Driver().Kind())
	case d.Device == dev.UUID():
		return dev, false, nil
	case !o.anyDevice:
		return nil, false, fmt.Errorf("%w: it is on %s, and device %s was asked for", vmm.ErrDevice, d.Device, dev)
	}
	if found, err := dev.Driver().DeviceByUUID(d.Device); err == nil {
		return found, false, nil
	}
	return dev, true, nil // the driver finds it, and gives dev access to it
}
