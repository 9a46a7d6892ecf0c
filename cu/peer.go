package cu

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/gpufd/gpufd/cu/sys"
)

// CanAccessPeer reports whether dev can get access to memory of peer: see
// [Context.EnablePeerAccess] (cuDeviceCanAccessPeer). It is false for a device
// and itself.
func (dev *Device) CanAccessPeer(peer *Device) (bool, error) {
	can := new(int32)
	err := dev.drv.check("cuDeviceCanAccessPeer", dev.drv.call.CuDeviceCanAccessPeer(can, dev.dev, peer.dev))
	return *can != 0, err
}

// outOfReach returns an error if one of devices cannot get access to the memory
// mapped at p, as far as is known. It asks the driver about the memory only if
// there are devices that cannot reach each other.
func (d *Driver) outOfReach(p DevicePtr, devices []*Device) error {
	for _, dev := range devices {
		for _, owner := range d.devices {
			if owner == dev {
				continue
			}
			if can, err := dev.CanAccessPeer(owner); err != nil || can || !d.isOn(p, owner) {
				continue
			}
			return fmt.Errorf("cu: device %s cannot reach memory of device %s: %w", dev, owner,
				d.check("cuDeviceCanAccessPeer", sys.CUDA_ERROR_PEER_ACCESS_UNSUPPORTED))
		}
	}
	return nil
}

// isOn reports whether the memory mapped at p is known to be on dev.
func (d *Driver) isOn(p DevicePtr, dev *Device) bool {
	m, err := d.RetainMemory(p)
	if err != nil {
		return false
	}
	at, err := m.Properties()
	return errors.Join(err, m.Close()) == nil && at.Location == dev.Location()
}

// A P2PAttribute names a property of the link between two devices.
type P2PAttribute sys.CUdevice_P2PAttribute

// The properties of a link. All but the first are 1 for yes and 0 for no.
const (
	P2PPerformanceRank            = P2PAttribute(sys.CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK)                     // rank among the links of this machine: 0 is the fastest
	P2PAccessSupported            = P2PAttribute(sys.CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED)                     // what [Device.CanAccessPeer] says
	P2PNativeAtomicSupported      = P2PAttribute(sys.CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED)              // atomic operations over the link
	P2PArrayAccessSupported       = P2PAttribute(sys.CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED)          // access to CUDA arrays
	P2POnlyPartialAtomicSupported = P2PAttribute(sys.CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED) // some atomic operations over the link, not all; CUDA 13.0
)

// String gives the attribute's name in C.
func (a P2PAttribute) String() string { return sys.CUdevice_P2PAttribute(a).String() }

// P2PAttribute returns a property of the link from dev to peer
// (cuDeviceGetP2PAttribute). [ErrInvalidDevice]: they are one device;
// [ErrInvalidValue]: the driver does not know the attribute.
func (dev *Device) P2PAttribute(a P2PAttribute, peer *Device) (int, error) {
	v := new(int32)
	r := dev.drv.call.CuDeviceGetP2PAttribute(v, sys.CUdevice_P2PAttribute(a), dev.dev, peer.dev)
	return int(*v), dev.drv.check("cuDeviceGetP2PAttribute", r)
}

// EnablePeerAccess lets kernels, fills, and writes of and waits for values in c
// reach memory of [Context.Alloc] and the like in peer, a context of another
// device (cuCtxEnablePeerAccess). It works one way, for memory allocated before
// and later, until DisablePeerAccess or the end of either. Without it kernels
// fail and the others get [ErrInvalidValue]; copies work, though perhaps slower.
// Memory of [Device.CreateMemory] has [Driver.SetAccess] instead.
//
// Errors: [ErrPeerAccessAlreadyEnabled]; [ErrPeerAccessUnsupported] where
// [Device.CanAccessPeer] is false, as within one device; [ErrTooManyPeers].
func (c *Context) EnablePeerAccess(peer *Context) error {
	return c.withPeer("cuCtxEnablePeerAccess", peer, func(call sys.Caller, peer sys.CUcontext) sys.CUresult {
		return call.CuCtxEnablePeerAccess(peer, 0)
	})
}

// DisablePeerAccess undoes [Context.EnablePeerAccess] (cuCtxDisablePeerAccess).
// No kernel may be using peer's memory. [ErrPeerAccessNotEnabled]: there was
// nothing to undo.
func (c *Context) DisablePeerAccess(peer *Context) error {
	return c.withPeer("cuCtxDisablePeerAccess", peer, sys.Caller.CuCtxDisablePeerAccess)
}

// withPeer makes one driver call with c bound. Close of either context waits for
// it.
func (c *Context) withPeer(op string, peer *Context, f func(sys.Caller, sys.CUcontext) sys.CUresult) error {
	defer runtime.KeepAlive(peer)
	if c == nil {
		return unusable(op, "the context", true)
	}
	if peer == nil || !peer.inner.enter() {
		return unusable(op, "the peer's context", peer == nil)
	}
	defer peer.inner.leave()
	if err := peer.inner.dev.drv.refuseOther(op, "the peer", c.inner.dev.drv); err != nil {
		return err
	}
	return c.run(op, func(call sys.Caller) sys.CUresult { return f(call, peer.inner.ctx) })
}
