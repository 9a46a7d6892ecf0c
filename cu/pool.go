package cu

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/internal/descriptor/fdtrace"
)

// A Pool is device memory that streams allocate and free in their own order:
// [Stream.AllocAsync], [Pool.AllocAsync]. It is safe for concurrent use. The
// caller owns a Pool of [Device.NewPool] or [Driver.ImportPool]; one of
// [Device.DefaultPool] or [Device.Pool] is only lent. The garbage collector
// destroys a lost Pool, unless it is a device's current one.
type Pool struct {
	inner *poolHandle
	owned bool
	owner *Pool // of a lent one, to keep it reachable; nil if unknown
}

// poolHandle is shared by all Pools of one pool, so that none of them uses it
// after its owner closed it.
type poolHandle struct {
	gate
	drv  *Driver
	dev  *Device // whose current one it can be
	pool sys.CUmemoryPool

	mu    sync.Mutex
	live  int // allocations that were not freed yet
	ended bool
}

// PoolOptions are the options of a pool, fixed when it is made.
type PoolOptions struct {
	Types   HandleType // how it may be shared: HandleFD, or HandleNone
	MaxSize uint64     // most bytes that it may hold; 0 is the driver's choice. Not before CUDA 12.2.
	Usage   PoolUsage  // what it is for
}

// PoolUsage is what a pool's memory will be used for.
type PoolUsage uint16

// PoolDecompress is memory that the hardware decompresses from and to (CUDA 12.8).
const PoolDecompress = PoolUsage(sys.CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS)

// SupportsPools reports whether the device has stream-ordered memory pools
// (CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED).
func (dev *Device) SupportsPools() (bool, error) {
	return dev.supports(AttributeMemoryPoolsSupported)
}

// PoolHandleTypes returns the ways to share pools of the device, combined
// (CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES).
func (dev *Device) PoolHandleTypes() (HandleType, error) {
	v, err := dev.Attribute(AttributeMempoolSupportedHandleTypes)
	return HandleType(v), err
}

// NewPool makes a pool of the device's memory (cuMemPoolCreate). It holds no
// memory yet, and its release threshold is 0. No context is needed. Errors:
// [ErrInvalidValue] for options newer than the driver; [ErrNotSupported] for
// handle types that it cannot share by.
func (dev *Device) NewPool(o PoolOptions) (*Pool, error) {
	props := &sys.CUmemPoolProps{
		AllocType:   sys.CU_MEM_ALLOCATION_TYPE_PINNED,
		HandleTypes: sys.CUmemAllocationHandleType(o.Types),
		Location:    dev.location(),
		MaxSize:     uintptr(o.MaxSize),
		Usage:       uint16(o.Usage),
	}
	h := new(sys.CUmemoryPool)
	if err := dev.drv.check("cuMemPoolCreate", dev.drv.call.CuMemPoolCreate(h, props)); err != nil {
		return nil, err
	}
	return dev.drv.newPool(dev, *h), nil
}

// newPool makes the Pool that owns h.
func (d *Driver) newPool(dev *Device, h sys.CUmemoryPool) *Pool {
	p := &Pool{inner: &poolHandle{drv: d, dev: dev, pool: h}, owned: true}
	runtime.AddCleanup(p, func(h *poolHandle) { go h.destroy() }, p.inner)
	return p
}

// DefaultPool returns the device's built-in pool, its current one until
// [Device.SetPool] (cuDeviceGetDefaultMemPool). It cannot be shared. It is lent:
// Close leaves it as it is.
func (dev *Device) DefaultPool() (*Pool, error) {
	return dev.lend("cuDeviceGetDefaultMemPool", dev.drv.call.CuDeviceGetDefaultMemPool)
}

// Pool returns the device's current pool, from which [Stream.AllocAsync] takes
// memory (cuDeviceGetMemPool). It is lent: Close leaves it as it is.
func (dev *Device) Pool() (*Pool, error) {
	return dev.lend("cuDeviceGetMemPool", dev.drv.call.CuDeviceGetMemPool)
}

// lend returns a Pool that does not own the one that get stores. Nobody sets
// another meanwhile, and one that its owner closes meanwhile is closed here too.
func (dev *Device) lend(op string, get func(*sys.CUmemoryPool, sys.CUdevice) sys.CUresult) (*Pool, error) {
	dev.pools.Lock()
	defer dev.pools.Unlock()
	h := new(sys.CUmemoryPool)
	if err := dev.drv.check(op, get(h, dev.dev)); err != nil {
		return nil, err
	}
	if p := dev.pool; p != nil && p.inner.pool == *h {
		return &Pool{inner: p.inner, owner: p}, nil
	}
	return &Pool{inner: &poolHandle{drv: dev.drv, pool: *h}}, nil
}

// SetPool makes p the device's current pool for the whole process
// (cuDeviceSetMemPool). The device keeps p; if its owner closes it, the default
// pool is current again. [ErrInvalidValue]: p is of another device, or imported.
func (dev *Device) SetPool(p *Pool) error {
	const op = "cuDeviceSetMemPool"
	if p == nil {
		return unusable(op, "the pool", true)
	}
	if err := p.inner.drv.refuseOther(op, "the pool", dev.drv); err != nil {
		return err
	}
	dev.pools.Lock()
	defer dev.pools.Unlock()
	return p.run(op, func(call sys.Caller, h sys.CUmemoryPool) sys.CUresult {
		r := call.CuDeviceSetMemPool(dev.dev, h)
		if r == sys.CUDA_SUCCESS {
			dev.pool = p
		}
		return r
	})
}

// useDefaultPool makes the default pool the current one; the caller holds
// dev.pools.
func (dev *Device) useDefaultPool() error {
	h := new(sys.CUmemoryPool)
	if err := dev.drv.check("cuDeviceGetDefaultMemPool", dev.drv.call.CuDeviceGetDefaultMemPool(h, dev.dev)); err != nil {
		return err
	}
	return dev.drv.check("cuDeviceSetMemPool", dev.drv.call.CuDeviceSetMemPool(dev.dev, *h))
}

// Handle returns the driver's own handle.
func (p *Pool) Handle() sys.CUmemoryPool {
	if p == nil {
		return 0
	}
	return p.inner.pool
}

// Close destroys the pool if p owns it, and returns at once (cuMemPoolDestroy).
// Memory that is still allocated from it stays; the pool goes with the last of
// it.
func (p *Pool) Close() error {
	if p == nil || !p.owned {
		return nil
	}
	defer runtime.KeepAlive(p)
	return p.inner.destroy()
}

func (h *poolHandle) destroy() error {
	if h.dev != nil {
		h.dev.pools.Lock()
		defer h.dev.pools.Unlock()
	}
	if !h.gate.close() {
		return nil
	}
	h.mu.Lock()
	h.ended = true
	wait := h.live > 0
	h.mu.Unlock()
	current := h.dev != nil && h.dev.pool != nil && h.dev.pool.inner == h
	if current {
		h.dev.pool = nil
	}
	switch {
	case !wait:
		return h.end()
	case current:
		return h.dev.useDefaultPool()
	}
	return nil
}

func (h *poolHandle) end() error {
	return h.drv.check("cuMemPoolDestroy", h.drv.call.CuMemPoolDestroy(h.pool))
}

// hold counts an allocation. h may be nil, and drop is the same.
func (h *poolHandle) hold() {
	if h != nil {
		h.mu.Lock()
		h.live++
		h.mu.Unlock()
	}
}

// drop undoes hold, and destroys the pool if that was closed and waited for it: a
// driver that destroys a pool earlier breaks its own memory
// (docs/driver-facts.md).
func (h *poolHandle) drop() error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	h.live--
	now := h.ended && h.live == 0
	h.mu.Unlock()
	if !now {
		return nil
	}
	return h.end()
}

// run makes one driver call on the pool.
func (p *Pool) run(op string, f func(sys.Caller, sys.CUmemoryPool) sys.CUresult) error {
	if p == nil || !p.inner.enter() {
		return unusable(op, "the pool", p == nil)
	}
	defer runtime.KeepAlive(p)
	defer p.inner.leave()
	return p.inner.drv.check(op, f(p.inner.drv.call, p.inner.pool))
}

// ReleaseThreshold returns how many bytes the pool keeps
// (CU_MEMPOOL_ATTR_RELEASE_THRESHOLD).
func (p *Pool) ReleaseThreshold() (uint64, error) {
	return getPool[uint64](p, sys.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
}

// SetReleaseThreshold sets how many bytes the pool keeps: 0 in a new pool,
// math.MaxUint64 for all (CU_MEMPOOL_ATTR_RELEASE_THRESHOLD). Unused memory
// beyond that goes back to the device when a stream, event or context is
// synchronised, and when this process finds the device full. A Synchronize whose
// context can end only asks whether the work is done, which does not count: see
// [Pool.Trim].
func (p *Pool) SetReleaseThreshold(bytes uint64) error {
	return setPool(p, sys.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, bytes)
}

// PoolReuse says which freed memory a pool may hand out to another stream than
// the one that freed it. The fields are true in a new pool.
type PoolReuse struct {
	FollowEvents         bool // if the other stream has waited for the free (CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES)
	Opportunistic        bool // if the free happens to be done (CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC)
	InternalDependencies bool // by making the other stream wait for the free (CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES)
}

// flags returns each field by its attribute.
func (r *PoolReuse) flags() map[sys.CUmemPool_attribute]*bool {
	return map[sys.CUmemPool_attribute]*bool{
		sys.CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:   &r.FollowEvents,
		sys.CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:         &r.Opportunistic,
		sys.CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: &r.InternalDependencies,
	}
}

// Reuse returns which freed memory the pool may hand out again
// (cuMemPoolGetAttribute).
func (p *Pool) Reuse() (r PoolReuse, err error) {
	for a, field := range r.flags() {
		v, err := getPool[int32](p, a)
		if err != nil {
			return PoolReuse{}, err
		}
		*field = v != 0
	}
	return r, nil
}

// SetReuse sets which freed memory the pool may hand out again
// (cuMemPoolSetAttribute).
func (p *Pool) SetReuse(r PoolReuse) error {
	for a, field := range r.flags() {
		var v int32
		if *field {
			v = 1
		}
		if err := setPool(p, a, v); err != nil {
			return err
		}
	}
	return nil
}

// PoolStats are sizes in bytes. The highs are the maxima since the pool was made
// or [Pool.ResetHighs] was called.
type PoolStats struct {
	Reserved, ReservedHigh uint64 // held by the pool, used or not (CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, …_HIGH)
	Used, UsedHigh         uint64 // allocated from it (CU_MEMPOOL_ATTR_USED_MEM_CURRENT, …_HIGH)
}

// Stats returns how much the pool holds and how much of that is in use
// (cuMemPoolGetAttribute).
func (p *Pool) Stats() (s PoolStats, err error) {
	for a, field := range map[sys.CUmemPool_attribute]*uint64{
		sys.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: &s.Reserved,
		sys.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:    &s.ReservedHigh,
		sys.CU_MEMPOOL_ATTR_USED_MEM_CURRENT:     &s.Used,
		sys.CU_MEMPOOL_ATTR_USED_MEM_HIGH:        &s.UsedHigh,
	} {
		if *field, err = getPool[uint64](p, a); err != nil {
			return PoolStats{}, err
		}
	}
	return s, nil
}

// ResetHighs sets the highs of [Pool.Stats] to what is held and used now
// (cuMemPoolSetAttribute).
func (p *Pool) ResetHighs() error {
	err := setPool(p, sys.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, uint64(0))
	if err == nil {
		err = setPool(p, sys.CU_MEMPOOL_ATTR_USED_MEM_HIGH, uint64(0))
	}
	return err
}

// Trim gives unused memory back to the device until the pool holds no more than
// keep bytes (cuMemPoolTrimTo). Freed memory is unused once the host has waited
// for the free.
func (p *Pool) Trim(keep uint64) error {
	return p.run("cuMemPoolTrimTo", func(call sys.Caller, h sys.CUmemoryPool) sys.CUresult {
		return call.CuMemPoolTrimTo(h, uintptr(keep))
	})
}

// AccessOf returns what dev may do with the pool's memory
// (cuMemPoolGetAccess).
func (p *Pool) AccessOf(dev *Device) (Access, error) {
	if p == nil {
		return 0, unusable("cuMemPoolGetAccess", "the pool", true)
	}
	if dev == nil {
		return 0, errors.New("cu: AccessOf: the device is nil")
	}
	flags, loc := new(sys.CUmemAccess_flags), dev.location()
	err := p.run("cuMemPoolGetAccess", func(call sys.Caller, h sys.CUmemoryPool) sys.CUresult {
		return call.CuMemPoolGetAccess(flags, h, &loc)
	})
	return Access(*flags), err
}

// Export makes a file descriptor for the pool, which the caller owns
// (cuMemPoolExportToShareableHandle). A process that imports the pool can import
// memory from it: [StreamMemory.ExportPointer]. [ErrInvalidValue]: the pool was
// not made with [HandleFD].
func (p *Pool) Export() (*os.File, error) {
	fd := new(int32)
	err := p.run("cuMemPoolExportToShareableHandle", func(call sys.Caller, h sys.CUmemoryPool) sys.CUresult {
		return private(fd, func() sys.CUresult { return exportPool(call, h, fd) })
	})
	if err != nil {
		return nil, err
	}
	return fdtrace.File(int(*fd), fmt.Sprintf("memory pool %#x", p.inner.pool)), nil
}

// ImportPool makes a pool from a descriptor that another process exported
// (cuMemPoolImportFromShareableHandle). The caller keeps fd and may close it. The
// pool does not allocate; it imports the exporter's memory
// ([Pool.ImportPointer]). No context is needed.
func (d *Driver) ImportPool(fd *os.File) (*Pool, error) {
	h := new(sys.CUmemoryPool)
	r, err := withFD(fd, func(fd uintptr) sys.CUresult {
		return d.call.CuMemPoolImportFromShareableHandle(h, fd, sys.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)
	})
	if err != nil {
		return nil, err
	}
	if err := d.check("cuMemPoolImportFromShareableHandle", r); err != nil {
		return nil, err
	}
	return d.newPool(nil, *h), nil
}
