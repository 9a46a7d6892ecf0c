package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/pattern"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// size is how much memory is shared: the granularity of all known devices (D14).
const size = 2 << 20

// write writes the pattern of salt to the memory.
func write(ctx *cu.Context, at cu.DevicePtr, n uint64, salt uint32) error {
	b := make([]byte, n)
	pattern.Fill(b, 0, salt)
	return cu.CopyToDevice(ctx, at, b)
}

// check compares the memory with the pattern of salt.
func check(ctx *cu.Context, at cu.DevicePtr, n uint64, salt uint32) error {
	b := make([]byte, n)
	if err := cu.CopyToHost(ctx, b, at); err != nil {
		return err
	}
	wrong, err := pattern.Check(b, 0, salt), error(nil)
	if wrong != (pattern.Mismatch{}) {
		err = fmt.Errorf("the bytes are not those that were written: %w", &wrong)
	}
	return err
}

// useContext makes a context and copies memory there and back.
func (c *child) useContext(ctx *cu.Context, r request, _ *answer) error {
	m, err := ctx.Alloc(4096)
	if err != nil {
		return err
	}
	return errors.Join(write(ctx, m.Ptr(), 4096, r.Salt), check(ctx, m.Ptr(), 4096, r.Salt), m.Close())
}

// create makes a buffer, writes the pattern and exports it.
func (c *child) create(ctx *cu.Context, r request, a *answer) error {
	buf, err := c.buffer(ctx, r.Salt)
	if err != nil {
		return err
	}
	d, files, err := buf.Export()
	a.Buffer, a.files = &d, files
	return err
}

func (c *child) buffer(ctx *cu.Context, salt uint32, opts ...vmm.NewOption) (*vmm.Buffer, error) {
	buf, err := vmm.New(ctx.Device(), size, opts...)
	if err != nil {
		return nil, err
	}
	c.keep(buf.Close)
	c.have["memory"] = buf
	return buf, write(ctx, buf.Ptr(), size, salt)
}

// verify checks what the other side has written.
func (c *child) verify(ctx *cu.Context, r request, _ *answer) error {
	m, ok := c.have["memory"].(interface{ Ptr() cu.DevicePtr })
	if !ok {
		return errors.New("there is no memory to verify")
	}
	return check(ctx, m.Ptr(), size, r.Salt)
}

// importMemory maps the received descriptors, verifies the memory, and writes the next
// pattern. If the device is hidden here, the driver's error says so.
func (c *child) importMemory(r request, files []*os.File, _ *answer) error {
	if len(files) != 1 || r.Buffer == nil {
		return fmt.Errorf("%d descriptors came, want one", len(files))
	}
	dev, err := c.device(r.Device)
	if err != nil {
		return errors.Join(err, c.tryImport(files[0]))
	}
	buf, err := vmm.Import(dev, *r.Buffer, files, vmm.WithAccess(cu.ReadWrite))
	if err != nil {
		return err
	}
	return c.imported(r, buf)
}

func (c *child) tryImport(file *os.File) error {
	if c.drv == nil {
		return nil
	}
	h, err := c.drv.ImportMemory(file, size)
	return errors.Join(err, h.Close())
}

// imported keeps a buffer, verifies the owner's pattern and writes the next.
func (c *child) imported(r request, buf *vmm.Buffer) error {
	c.keep(buf.Close)
	ctx, err := c.context(r.Device, false)
	if err != nil {
		return err
	}
	return turn(ctx, r, buf.Ptr())
}

// turn verifies the owner's pattern and writes the next.
func turn(ctx *cu.Context, r request, at cu.DevicePtr) error {
	if err := check(ctx, at, size, r.Salt); err != nil || r.Read {
		return err
	}
	return write(ctx, at, size, r.Salt+1)
}

// fabric makes memory for fabric handles, and exports it.
func (c *child) fabric(ctx *cu.Context, r request, a *answer) error {
	buf, err := c.buffer(ctx, r.Salt, vmm.WithFabric())
	if err != nil {
		return err
	}
	d, handles, err := buf.ExportFabric()
	if err != nil {
		return err
	}
	a.Buffer, a.Fabric = &d, handles[0][:]
	return nil
}

func (c *child) importFabric(r request, _ []*os.File, _ *answer) error {
	dev, err := c.device(r.Device)
	if err != nil || r.Buffer == nil || len(r.Fabric) != 64 {
		return errors.Join(err, fmt.Errorf("a fabric handle of %d bytes", len(r.Fabric)))
	}
	buf, err := vmm.ImportFabric(dev, *r.Buffer, []cu.FabricHandle{cu.FabricHandle(r.Fabric)}, vmm.WithAccess(cu.ReadWrite))
	if err != nil {
		return err
	}
	return c.imported(r, buf)
}

// legacy makes memory for legacy IPC.
func (c *child) legacy(ctx *cu.Context, r request, a *answer) error {
	m, err := ctx.Alloc(size)
	if err != nil {
		return err
	}
	c.keep(m.Close)
	c.have["memory"] = m
	h, err := m.IPCHandle()
	a.Memory = &h
	return errors.Join(err, write(ctx, m.Ptr(), size, r.Salt), ctx.Synchronize(context.Background()))
}

func (c *child) openLegacy(ctx *cu.Context, r request, _ *answer) error {
	if r.Memory == nil {
		return nil
	}
	m, err := ctx.OpenIPC(*r.Memory)
	if err != nil {
		return err
	}
	return errors.Join(turn(ctx, r, m.Ptr()), m.Close())
}

// event makes and records an event for other processes.
func (c *child) event(ctx *cu.Context, r request, a *answer) error {
	e, err := ctx.NewEvent(cu.EventInterprocess | cu.EventDisableTiming)
	if err != nil {
		return err
	}
	c.keep(e.Close)
	h, err := e.IPCHandle()
	a.Event = &h
	return errors.Join(err, e.Record(ctx.NullStream()), ctx.Synchronize(context.Background()))
}

// eventWait bounds the wait for an event that was recorded before.
const eventWait = 5 * time.Second

func (c *child) openEvent(ctx *cu.Context, r request, _ *answer) error {
	if r.Event == nil {
		return nil
	}
	e, err := ctx.OpenIPCEvent(*r.Event)
	if err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(context.Background(), eventWait)
	defer cancel()
	return errors.Join(e.Synchronize(wait), e.Close())
}

// count says how many descriptors came.
func (c *child) count(r request, files []*os.File, a *answer) error {
	a.Seen = fmt.Sprintf("%d descriptors arrived", len(files))
	if len(files) != r.Count {
		return fmt.Errorf("%w: %d came of %d", sock.ErrControlTruncated, len(files), r.Count)
	}
	return nil
}
