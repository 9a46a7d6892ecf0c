package soft

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/gpufd/gpufd/cu/sys"
	"golang.org/x/sys/unix"
)

// A machine is the whole state of the driver, of which a process has one, as
// it has one libcuda. mu guards all of it, and what hangs on it; nothing
// copies device memory or waits for a stream while holding mu.
type machine struct {
	once      sync.Once // reads the environment
	conf      config
	configErr error

	mu       sync.Mutex
	inited   bool
	store    *store    // nil until it is opened
	token    [8]byte   // the process, in what it gives out to others, its number first
	owner    *control  // says that it lives, once it shares memory by legacy IPC
	devices  []*device // the visible ones, in CUDA's order
	node     *device   // stands for the host's memory, in its place
	health   health
	contexts map[sys.CUcontext]*context
	streams  map[sys.CUstream]*stream
	events   map[sys.CUevent]*event
	graphs   map[sys.CUgraph]*graph
	nodes    map[sys.CUgraphNode]*node
	execs    map[sys.CUgraphExec]*graphExec

	modules   map[sys.CUmodule]*module
	functions map[sys.CUfunction]*function
	libraries map[sys.CUlibrary]*library
	kernels   map[sys.CUkernel]*kernel
	cache     moduleCache // with a lock of its own
	lastFault error       // of work
	running   map[*kernelMemory]bool

	waiting atomic.Int64 // streams that are at a word's operation

	threads  map[int]*thread
	handles  map[sys.CUmemGenericAllocationHandle]*handle
	external map[sys.CUexternalMemory]*external
	pools    map[sys.CUmemoryPool]*pool
	space    space
	host     hostTable
	captures map[*capture]bool // under way
	staged   uint64            // bytes of pageable memory copied out and not yet written
	serial   uint32            // of the last handle given out
	buffers  uint64            // pieces of memory there have been
	misuses  []string
}

// driver is the machine behind the symbols.
var driver = newMachine()

func newMachine() *machine {
	return &machine{
		contexts: make(map[sys.CUcontext]*context),
		streams:  make(map[sys.CUstream]*stream),
		events:   make(map[sys.CUevent]*event),
		graphs:   make(map[sys.CUgraph]*graph),
		nodes:    make(map[sys.CUgraphNode]*node),
		execs:    make(map[sys.CUgraphExec]*graphExec),
		captures: make(map[*capture]bool),

		modules:   make(map[sys.CUmodule]*module),
		functions: make(map[sys.CUfunction]*function),
		libraries: make(map[sys.CUlibrary]*library),
		kernels:   make(map[sys.CUkernel]*kernel),
		running:   make(map[*kernelMemory]bool),

		threads: make(map[int]*thread),
		handles: make(map[sys.CUmemGenericAllocationHandle]*handle),
		pools:   make(map[sys.CUmemoryPool]*pool),

		external: make(map[sys.CUexternalMemory]*external),
	}
}

// config returns what the environment says, read once.
func (m *machine) config() config {
	m.once.Do(func() { m.conf, m.configErr = readConfig() })
	return m.conf
}

// prepare opens the store and finds the visible devices, unless that is done. It
// removes what killed processes left in the store.
func (m *machine) prepare() error {
	m.config()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.configErr != nil || m.store != nil {
		return m.configErr
	}
	s, err := openStore(m.conf.dir)
	if err == nil {
		err = s.sweep(m.conf.devices)
	}
	if err != nil {
		return dirError(m.conf.dir, err)
	}
	rand.Read(m.token[:])
	binary.LittleEndian.PutUint32(m.token[:], uint32(os.Getpid()))
	m.store, m.devices, m.node = s, visibleDevices(m.conf, s), hostNode(m.conf, s)
	return nil
}

// cuInit may be called again, like libcuda's, and after a failure.
func (m *machine) cuInit(flags uint32) sys.CUresult {
	if flags != 0 {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	if m.prepare() != nil {
		return sys.CUDA_ERROR_OPERATING_SYSTEM
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.devices) == 0 {
		return sys.CUDA_ERROR_NO_DEVICE // D19
	}
	m.inited = true
	return sys.CUDA_SUCCESS
}

// ready begins every call but the few that need no cuInit.
func (m *machine) ready() sys.CUresult {
	if !m.inited {
		return sys.CUDA_ERROR_NOT_INITIALIZED
	}
	return sys.CUDA_SUCCESS
}

// cuDriverGetVersion needs no cuInit.
func (m *machine) cuDriverGetVersion(version *int32) sys.CUresult {
	if version == nil {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	*version = int32(m.config().version)
	return sys.CUDA_SUCCESS
}

// misuse records a call on which the real driver crashes, or which it accepts
// though it is wrong (D4), and returns the error that the call gets here.
func (m *machine) misuse(r sys.CUresult, format string, args ...any) sys.CUresult {
	m.misuses = append(m.misuses, fmt.Sprintf(format, args...))
	return r
}

// Misuses returns calls that the real driver would have crashed on or silently
// accepted: releasing a handle that is none, unmapping twice, using a destroyed
// stream. A test of anything above this package fails if there are any.
func Misuses() []string {
	driver.mu.Lock()
	defer driver.mu.Unlock()
	return append([]string(nil), driver.misuses...)
}

// ForgetMisuses empties the list; it is for tests that misuse the driver on
// purpose.
func ForgetMisuses() {
	driver.mu.Lock()
	defer driver.mu.Unlock()
	driver.misuses = nil
}

// Kinds of handle, the top byte of each. A handle also holds its context's
// number, so that a handle of a destroyed context differs from one that never
// was. No number is given out twice.
const (
	kindContext = 0x0c + iota
	kindStream
	kindEvent
	kindAllocation
	kindPool
	kindGraph
	kindNode
	kindExec
	kindModule
	kindFunction
	kindLibrary
	kindKernel
	kindExternal
)

// newHandle returns a handle that was never used before.
func (m *machine) newHandle(kind uint64, ctx uint64) uint64 {
	m.serial++
	return kind<<56 | ctx<<32 | uint64(m.serial)
}

// newBufferID numbers a piece of memory of any kind; no number comes twice.
func (m *machine) newBufferID() uint64 {
	m.buffers++
	return m.buffers
}

// contextNumber returns the context's part of a handle.
func contextNumber(handle uint64) uint64 { return handle >> 32 & 0xffffff }

// isA reports whether a handle could be one of that kind that was given out.
func (m *machine) isA(kind, handle uint64) bool {
	serial := uint32(handle)
	return handle>>56 == kind && serial != 0 && serial <= m.serial
}

// threadID returns the calling OS thread, which a callback does not leave.
func threadID() int { return unix.Gettid() }
