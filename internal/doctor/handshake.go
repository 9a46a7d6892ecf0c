package doctor

import (
	"errors"
	"os"
	"strings"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/vmm"
)

// handshake makes what is shared with other doctors. It leaves out what legacy IPC does not support.
func (c *child) handshake(dev *cu.Device) (g hello, buf *vmm.Buffer, err error) {
	if g.identity, err = identityOf("self"); err != nil {
		return g, nil, err
	}
	g.UID = uint32(os.Geteuid())
	g.Device, g.Salt, g.Kind = dev.UUID(), newSalt(), dev.Driver().Kind()
	for _, d := range dev.Driver().Devices() {
		g.Devices = append(g.Devices, d.UUID())
	}
	ctx, err := c.context(g.Device, false)
	if err != nil {
		return g, nil, err
	}
	if buf, err = c.buffer(ctx, g.Salt); err != nil {
		return g, nil, err
	}
	var a answer
	if err = c.legacy(ctx, request{Salt: g.Salt}, &a); err == nil {
		g.Memory = a.Memory
	}
	eventErr := c.event(ctx, request{}, &a)
	if eventErr == nil {
		g.Event = a.Event
	}
	for _, err := range []error{err, eventErr} {
		if err != nil && !errors.Is(err, cu.ErrNotSupported) {
			return g, nil, err
		}
	}
	return g, buf, nil
}

// IsProcess reports whether With takes s for the number of a process, and not for a path.
func IsProcess(s string) bool {
	digits := strings.TrimPrefix(s, "-")
	return digits != "" && strings.Trim(digits, "0123456789") == ""
}
