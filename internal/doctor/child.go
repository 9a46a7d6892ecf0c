package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/descriptor/fdtrace"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// childFD is the descriptor that a child is asked by.
const childFD = 3

// A child is a process that makes the calls of the driver.
type child struct {
	open func() (*cu.Driver, error)
	drv  *cu.Driver
	ends []func() error // end what it has, latest last
	have map[string]any // what it has, by purpose
}

// RunChild is the main function of a process that [Run] or [With] started. It carries out
// requests until the other end closes the connection, which is descriptor 3. open opens the
// driver.
func RunChild(open func() (*cu.Driver, error)) error {
	conn, err := sock.FromFile(fdtrace.File(childFD, "doctor"))
	if err != nil {
		return err
	}
	return serve(conn, open)
}

// serve answers requests at conn, which it owns.
func serve(conn *sock.Conn, open func() (*cu.Driver, error)) error {
	defer conn.Close()
	c := &child{open: open, have: map[string]any{}}
	for {
		rec, err := conn.Receive(context.Background())
		if errors.Is(err, sock.ErrPeerLost) {
			return c.drop()
		}
		var a answer
		if err == nil {
			a = c.answer(rec)
		} else if a = (answer{Fault: newFault(err)}); errors.Is(err, sock.ErrStuck) {
			return errors.Join(c.drop(), reply(conn, a))
		}
		if err := reply(conn, a); err != nil {
			return errors.Join(c.drop(), err)
		}
	}
}

func reply(conn *sock.Conn, a answer) error {
	text, err := json.Marshal(a)
	if err != nil {
		return err
	}
	return errors.Join(conn.Send(context.Background(), text, a.files...), sock.CloseFiles(a.files))
}

// answer carries out the request in a record.
func (c *child) answer(rec sock.Record) (a answer) {
	defer rec.Close()
	var r request
	err := json.Unmarshal(rec.Data, &r)
	inContext := map[string]func(*cu.Context, request, *answer) error{
		"context": c.useContext, "create": c.create, "verify": c.verify, "fabric": c.fabric,
		"own": c.own, "legacy": c.legacy, "open legacy": c.openLegacy, "event": c.event, "open event": c.openEvent,
	}[r.Do]
	do := map[string]func(request, []*os.File, *answer) error{
		"open": c.openDriver, "import": c.importMemory, "import fabric": c.importFabric, "take": c.take, "files": c.count,
		"state": c.state, "checkpoint": c.checkpoint,
		"connect": c.connect, "shm": c.shm, "attach": c.attach, "drop": func(request, []*os.File, *answer) error { return c.drop() },
	}[r.Do]
	switch {
	case err != nil:
	case inContext != nil:
		var ctx *cu.Context
		if ctx, err = c.context(r.Device, strings.HasPrefix(r.Do, "open")); err == nil {
			err = inContext(ctx, r, &a)
		}
	case do != nil:
		err = do(r, rec.Files, &a)
	default:
		err = fmt.Errorf("no such request: %q", r.Do)
	}
	a.Fault, a.PID = newFault(err), os.Getpid()
	return a
}

// keep notes how to end what the child has got.
func (c *child) keep(end func() error) { c.ends = append(c.ends, end) }

// drop gives back all that the child has, except the driver.
func (c *child) drop() error {
	var errs []error
	for i := len(c.ends) - 1; i >= 0; i-- {
		errs = append(errs, c.ends[i]())
	}
	c.ends, c.have = nil, map[string]any{}
	return errors.Join(errs...)
}

func (c *child) openDriver(_ request, _ []*os.File, a *answer) (err error) {
	if c.drv, err = c.open(); err != nil {
		return err
	}
	a.Driver, a.Kind, a.Version = c.drv.String(), c.drv.Kind(), c.drv.Version()
	for _, dev := range c.drv.Devices() {
		info := deviceInfo{Name: dev.Name(), UUID: dev.UUID(), MIG: dev.IsMIG()}
		if mode, err := dev.ComputeMode(); err == nil {
			info.Mode = mode.String()
		}
		a.Devices = append(a.Devices, info)
	}
	return nil
}

// device returns the device, or an error that says that it is hidden.
func (c *child) device(uuid cu.UUID) (*cu.Device, error) {
	if c.drv == nil {
		return nil, errors.New("no driver is open")
	}
	var have []string
	for _, dev := range c.drv.Devices() {
		if dev.UUID() == uuid {
			return dev, nil
		}
		have = append(have, dev.String())
	}
	err := fmt.Errorf("%w: device %s is not among those that process %d sees: %s", vmm.ErrDevice, uuid, os.Getpid(), strings.Join(have, ", "))
	return nil, marked{err, "gpu-hidden"}
}

// context returns the primary context of the device, or of the first device if that one is
// hidden and any will do.
func (c *child) context(uuid cu.UUID, any bool) (*cu.Context, error) {
	dev, err := c.device(uuid)
	if err != nil && any && c.drv != nil && len(c.drv.Devices()) > 0 {
		dev, err = c.drv.Devices()[0], nil
	}
	if err != nil {
		return nil, err
	}
	key := "context " + dev.UUID().String()
	if ctx, ok := c.have[key].(*cu.Context); ok {
		return ctx, nil
	}
	ctx, err := dev.PrimaryContext()
	if err != nil {
		return nil, err
	}
	c.have[key] = ctx
	c.keep(ctx.Close)
	return ctx, nil
}
