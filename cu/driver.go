package cu

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpufd/gpufd/cu/sys"
)

// softSymbol is exported by the software driver alone.
const softSymbol = "gpufdSoftDriver"

// A Driver is an opened and initialised CUDA driver. It is safe for concurrent
// use and is never closed, as libcuda cannot be unloaded; opening it again is
// cheap.
type Driver struct {
	call     sys.Caller
	name     string
	why      string // it is the fallback, or ""
	kind     Kind
	version  int
	leak     func(Leak)
	devices  []*Device
	loss     lostState
	captures captures
	open     handles      // of all contexts
	entering sync.Mutex   // held while queuedWork enters them
	watches  atomic.Int64 // goroutines that look after streams which wait

	closeLimit time.Duration

	libraries sync.Map // *libraryHandle → nil: those loaded, of whose logs the driver has the addresses

	// graphs orders the calls on graphs. The driver does not guard one against
	// another, and a graph shares state with its clones, its executables and
	// those updated to it: an H200 crashed when one was destroyed while another
	// was launched. Launches change nothing and may go side by side.
	graphs sync.RWMutex
}

type config struct {
	resolver sys.Resolver // nil for libcuda
	name     string
	fallback sys.Resolver // or nil
	trace    io.Writer
	hooks    []sys.Hook
	leak     func(Leak)
	err      error // of an option

	closeLimit time.Duration
}

// An Option changes what [Open] opens.
type Option func(*config)

// WithResolver opens the driver whose functions r finds instead of libcuda, also
// for [WithFallback]. This opens the software driver even where there is a GPU:
//
//	cu.Open(cu.WithResolver(soft.Resolver))
func WithResolver(r sys.Resolver) Option {
	return func(c *config) { c.resolver, c.name = r, "" }
}

// WithTrace prints every driver call to w, as GPUFD_TRACE=1 does to standard
// error.
func WithTrace(w io.Writer) Option { return func(c *config) { c.trace = w } }

// WithHook puts h around every driver call, to observe it or to answer instead of
// the driver. For tests, package cu/cutest has faults by function. If there are
// several hooks, the first is outermost, and the last is closest to the driver.
// Tracing is around them all: it shows the answers that the program gets.
func WithHook(h sys.Hook) Option { return func(c *config) { c.hooks = append(c.hooks, h) } }

// WithLeakHandler calls f for device memory that was lost while mapped. The
// default prints to standard error.
func WithLeakHandler(f func(Leak)) Option { return func(c *config) { c.leak = f } }

// Open opens libcuda, or what an option puts in its place, and initialises it:
// cuInit, cuDriverGetVersion and the list of devices (cuDeviceGetCount,
// cuDeviceGet). Programs that should also run without a GPU use [WithFallback].
//
// Errors: [*sys.LibraryError] if there is no libcuda; [ErrNoDevice] if no GPU is
// visible; another [*Error] of cuInit if the driver is there but broken;
// *soft.ConfigError if the environment of the software driver makes no sense.
func Open(opts ...Option) (*Driver, error) {
	c := config{leak: printLeak, closeLimit: defaultCloseLimit}
	if on, _ := strconv.ParseBool(os.Getenv("GPUFD_TRACE")); on {
		c.trace = os.Stderr
	}
	for _, o := range opts {
		o(&c)
	}
	if c.err != nil {
		return nil, c.err
	}
	if c.fallback != nil {
		return openCUDAOrFallback(c)
	}
	return open(c)
}

// open opens the driver that c's resolver finds, or libcuda.
func open(c config) (*Driver, error) {
	if c.resolver == nil {
		var err error
		if c.resolver, c.name, err = sys.OpenCUDA(); err != nil {
			return nil, err
		}
	}
	d := &Driver{name: c.name, kind: CUDA, leak: c.leak, closeLimit: c.closeLimit}
	if err := d.init(c); err != nil {
		return nil, err
	}
	return d, nil
}

func (d *Driver) init(c config) error {
	lib := sys.NewLibrary(c.resolver)
	d.call = lib.Caller()
	if c.trace != nil {
		c.hooks = append([]sys.Hook{sys.Trace(c.trace)}, c.hooks...)
	}
	lib.SetHook(sys.Nest(c.hooks...))
	if lib.Has(softSymbol) {
		d.kind = Soft
		if _, err := lib.Lookup("cuInit"); err != nil {
			return err // why it cannot start
		}
	}
	v := new(int32)
	if d.call.CuDriverGetVersion(v) == sys.CUDA_SUCCESS {
		d.version = int(*v)
	}
	if err := d.check("cuInit", d.call.CuInit(0)); err != nil {
		return err
	}
	return d.findDevices()
}

func (d *Driver) findDevices() error {
	n := new(int32)
	if err := d.check("cuDeviceGetCount", d.call.CuDeviceGetCount(n)); err != nil {
		return err
	}
	for i := range int(*n) {
		dev, err := d.newDevice(i)
		if err != nil {
			return err
		}
		d.devices = append(d.devices, dev)
	}
	return nil
}

// refuseOther returns an error unless other is the same driver as d. Handles of d
// mean nothing to another driver, which may crash on them.
func (d *Driver) refuseOther(op, what string, other *Driver) error {
	if d.call.Library() == other.call.Library() {
		return nil
	}
	return &Error{Op: op, Result: ErrInvalidHandle, Detail: what + " belongs to another driver"}
}

// Kind tells libcuda from the software driver.
func (d *Driver) Kind() Kind { return d.kind }

// Version returns the driver's CUDA version: 13000 is CUDA 13.0.
func (d *Driver) Version() int { return d.version }

// String describes the driver, e.g. "libcuda.so.1 (CUDA 13.0)". For the driver of
// [WithFallback] it adds why libcuda was not used, e.g. "software driver (CUDA
// 13.0): libcuda is not installed here".
func (d *Driver) String() string {
	name := d.name
	switch {
	case d.kind == Soft:
		name = "software driver"
	case name == "":
		name = "CUDA driver"
	}
	text := fmt.Sprintf("%s (CUDA %s)", name, sys.Version(d.version))
	if d.why != "" {
		text += ": " + d.why
	}
	return text
}

// Caller returns the raw driver API, for functions that this package does not
// wrap. It has no context; [Context.Caller] has.
func (d *Driver) Caller() sys.Caller { return d.call }

// Devices returns the visible devices in the driver's order. The caller owns the
// slice.
func (d *Driver) Devices() []*Device { return append([]*Device(nil), d.devices...) }

// A NoDeviceError says that no visible device is the one asked for.
type NoDeviceError struct {
	Want string   // ordinal, UUID or PCI address
	Have []string // what is visible
}

// Error lists what is visible.
func (e *NoDeviceError) Error() string {
	return fmt.Sprintf("cu: no device %s here; visible devices:\n  %s", cmp.Or(e.Want, `""`), strings.Join(e.Have, "\n  "))
}

func (d *Driver) noDevice(want string) error {
	e := &NoDeviceError{Want: want}
	for _, dev := range d.devices {
		e.Have = append(e.Have, dev.String())
	}
	return e
}

// Device returns the visible device with that ordinal, from 0, or a
// [*NoDeviceError]. An ordinal depends on CUDA_VISIBLE_DEVICES; a UUID does not.
func (d *Driver) Device(ordinal int) (*Device, error) {
	if ordinal < 0 || ordinal >= len(d.devices) {
		return nil, d.noDevice(strconv.Itoa(ordinal))
	}
	return d.devices[ordinal], nil
}

// DeviceByUUID returns the visible device with that UUID, or a [*NoDeviceError].
func (d *Driver) DeviceByUUID(id UUID) (*Device, error) {
	for _, dev := range d.devices {
		if dev.uuid == id {
			return dev, nil
		}
	}
	return nil, d.noDevice(id.String())
}

// DeviceByPCIBusID returns the visible device at a PCI address, or a
// [*NoDeviceError] (cuDeviceGetByPCIBusId). id is as [Device.PCIBusID] returns
// it; domain and function may be left out. It may be any MIG instance of a GPU.
func (d *Driver) DeviceByPCIBusID(id string) (*Device, error) {
	const op = "cuDeviceGetByPCIBusId"
	handle := new(sys.CUdevice)
	address, err := cString(op, id)
	if err == nil {
		err = d.check(op, d.call.CuDeviceGetByPCIBusId(handle, address))
	}
	if errors.Is(err, ErrInvalidDevice) || errors.Is(err, ErrInvalidValue) {
		return nil, d.noDeviceAt(id)
	}
	if err != nil {
		return nil, err
	}
	for _, dev := range d.devices {
		if dev.dev == *handle {
			return dev, nil
		}
	}
	return nil, d.noDeviceAt(id)
}

// noDeviceAt is noDevice for a PCI address, and lists the addresses here.
func (d *Driver) noDeviceAt(id string) error {
	e := &NoDeviceError{Want: "at PCI address " + id}
	for _, dev := range d.devices {
		at, err := dev.PCIBusID()
		if err != nil {
			at = err.Error()
		}
		e.Have = append(e.Have, at+" "+dev.String())
	}
	return e
}

// FindDevice returns the device that a person named: an ordinal ("0"), a UUID
// ("GPU-8f7d…" or "MIG-…"), or a prefix of a UUID that fits one device only.
func (d *Driver) FindDevice(name string) (*Device, error) {
	if n, err := strconv.Atoi(name); err == nil {
		return d.Device(n)
	}
	want := strings.ToLower(name)
	if rest, ok := strings.CutPrefix(want, "mig-"); ok {
		want = "gpu-" + rest // UUID.String knows no other prefix
	}
	var found *Device
	for _, dev := range d.devices {
		if len(want) > len("gpu-") && strings.HasPrefix(strings.ToLower(dev.uuid.String()), want) {
			if found != nil {
				return nil, fmt.Errorf("cu: device %s is ambiguous: %s and %s", name, found, dev)
			}
			found = dev
		}
	}
	if found == nil {
		return nil, d.noDevice(name)
	}
	return found, nil
}
