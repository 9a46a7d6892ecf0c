package soft

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/internal/testenv"
	"github.com/gpufd/gpufd/internal/testenv/handles"
	"github.com/gpufd/gpufd/internal/testenv/leak"
	"github.com/stretchr/testify/require"
)

// testMemory is the size of each device.
const testMemory = 64 << 20

// MiB is a mebibyte.
const MiB = 1 << 20

var (
	lib    = sys.NewLibrary(Resolver)
	caller = lib.Caller()
	given  handles.Table // what lib gave out
)

func TestMain(m *testing.M) {
	if role := testenv.Role(); role != "" {
		children[role]()
		os.Exit(0)
	}
	dir := testDir()
	os.Setenv(envDir, dir)
	os.Setenv(envMemory, fmt.Sprint(testMemory))
	os.Setenv(envDevices, "2")
	os.Unsetenv(envVisible)
	os.Unsetenv(envVersion)
	flag.Parse()
	if flag.Lookup("test.bench").Value.String() == "" { // a hook would be measured, too
		lib.SetHook(given.Hook)
	}
	before := leak.Now()
	code := m.Run()
	left := before.Left(func() []string { return leftIn(dir) })
	os.RemoveAll(dir)
	os.Exit(leak.Report(os.Stderr, code, left))
}

// testDir makes a store of the test's own, in memory if it can be.
func testDir() string {
	parent := ""
	if tmpfsHolds("/dev/shm", 1<<30) {
		parent = "/dev/shm"
	}
	dir, err := os.MkdirTemp(parent, "gpufd-soft-test-")
	if err != nil {
		panic(err)
	}
	return dir
}

// leftIn says what the tests left behind of what only the driver has:
// invariant 3.
func leftIn(dir string) []string {
	found := given.Since(0)
	for _, pattern := range []string{"gpu*", "pool-*", "ipc-*", "event-*"} {
		names, _ := filepath.Glob(filepath.Join(dir, pattern))
		found = append(found, names...)
	}
	maps, _ := os.ReadFile("/proc/self/maps")
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, dir) {
			found = append(found, "mapping "+line)
		}
	}
	for _, s := range Misuses() {
		found = append(found, "misuse: "+s)
	}
	return append(found, driver.leftovers()...)
}

// leftovers says what the machine still has.
func (m *machine) leftovers() (found []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for what, n := range map[string]int{
		"contexts":     len(m.contexts),
		"streams":      len(m.streams),
		"events":       len(m.events),
		"graphs":       len(m.graphs),
		"graph nodes":  len(m.nodes),
		"executables":  len(m.execs),
		"captures":     len(m.captures),
		"modules":      len(m.modules),
		"functions":    len(m.functions),
		"libraries":    len(m.libraries),
		"kernels":      len(m.kernels),
		"handles":      len(m.handles),
		"pools":        len(m.pools) - m.defaultPools(),
		"external":     len(m.external),
		"reservations": len(m.space.reservations),
		"host blocks":  len(m.host.blocks),
		"staged bytes": int(m.staged),
	} {
		if n != 0 {
			found = append(found, fmt.Sprint(n, " ", what))
		}
	}
	return found
}

// defaultPools counts the pools that stay.
func (m *machine) defaultPools() (n int) {
	for _, d := range m.devices {
		if d.defaultPool != nil {
			n++
		}
	}
	return n
}

// ok fails the test unless a call succeeded.
func ok(t testing.TB, r sys.CUresult) {
	t.Helper()
	require.Equal(t, sys.CUDA_SUCCESS, r)
}

// want fails the test unless a call had the result.
func want(t testing.TB, expected, r sys.CUresult) {
	t.Helper()
	require.Equal(t, expected, r, "want %v, have %v", expected, r)
}

// misused fails the test unless it misused the driver n times, and forgets
// that it did.
func misused(t testing.TB, n int) {
	t.Helper()
	require.Len(t, Misuses(), n)
	ForgetMisuses()
}

// initialised returns a caller without a context after cuInit.
func initialised(t testing.TB) sys.Caller {
	t.Helper()
	ok(t, caller.CuInit(0))
	return caller
}

// inContext returns a caller in the primary context of a device, which is
// released when the test ends. A test may lose it: see heal.
func inContext(t testing.TB, dev sys.CUdevice) sys.Caller {
	t.Helper()
	c := initialised(t)
	var ctx sys.CUcontext
	ok(t, c.CuDevicePrimaryCtxRetain(&ctx, dev))
	t.Cleanup(func() {
		ok(t, c.CuDevicePrimaryCtxRelease_v2(dev))
		driver.heal()
	})
	return c.With(ctx)
}

// heal makes lost contexts well again, which nothing but the end of the process
// does otherwise, so that tests can lose them. Work that is still ending would lose
// them once more: heal waits for it.
func (m *machine) heal() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.health.sticky == sys.CUDA_SUCCESS {
		return
	}
	for _, s := range m.streams {
		for s.busy() {
			done := s.tail.done
			m.mu.Unlock()
			<-done
			m.mu.Lock()
		}
	}
	m.health = health{}
}

// propOf describes memory of a device that can be shared as an fd.
func propOf(dev sys.CUdevice) *sys.CUmemAllocationProp {
	return &sys.CUmemAllocationProp{
		Type:                 sys.CU_MEM_ALLOCATION_TYPE_PINNED,
		RequestedHandleTypes: sys.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		Location:             sys.CUmemLocation{Type: sys.CU_MEM_LOCATION_TYPE_DEVICE, Id: int32(dev)},
	}
}

// create makes memory, released when the test ends.
func create(t testing.TB, size uintptr, dev sys.CUdevice) sys.CUmemGenericAllocationHandle {
	t.Helper()
	var h sys.CUmemGenericAllocationHandle
	ok(t, caller.CuMemCreate(&h, size, propOf(dev), 0))
	t.Cleanup(func() { ok(t, caller.CuMemRelease(h)) })
	return h
}

// reserved returns address space, freed when the test ends.
func reserved(t testing.TB, size uintptr) sys.CUdeviceptr {
	t.Helper()
	var p sys.CUdeviceptr
	ok(t, caller.CuMemAddressReserve(&p, size, 0, 0, 0))
	t.Cleanup(func() { ok(t, caller.CuMemAddressFree(p, size)) })
	return p
}

// mapped maps a handle until the test ends.
func mapped(t testing.TB, p sys.CUdeviceptr, size uintptr, h sys.CUmemGenericAllocationHandle) {
	t.Helper()
	ok(t, caller.CuMemMap(p, size, 0, h, 0))
	t.Cleanup(func() { ok(t, caller.CuMemUnmap(p, size)) })
}

// accessTo describes rights of a device.
func accessTo(dev sys.CUdevice, flags sys.CUmemAccess_flags) *sys.CUmemAccessDesc {
	return &sys.CUmemAccessDesc{
		Location: sys.CUmemLocation{Type: sys.CU_MEM_LOCATION_TYPE_DEVICE, Id: int32(dev)},
		Flags:    flags,
	}
}

const (
	readOnly  = sys.CU_MEM_ACCESS_FLAGS_PROT_READ
	readWrite = sys.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
)

// buffer is memory of a device, mapped and read-write there until the test
// ends.
func buffer(t testing.TB, size uintptr, dev sys.CUdevice) (sys.CUdeviceptr, sys.CUmemGenericAllocationHandle) {
	t.Helper()
	h := create(t, size, dev)
	p := reserved(t, size)
	mapped(t, p, size, h)
	ok(t, caller.CuMemSetAccess(p, size, accessTo(dev, readWrite), 1))
	return p, h
}

// looseBuffer is buffer that the caller frees.
func looseBuffer(t testing.TB, n uintptr) (p sys.CUdeviceptr, free func()) {
	var h sys.CUmemGenericAllocationHandle
	ok(t, caller.CuMemCreate(&h, n, propOf(0), 0))
	ok(t, caller.CuMemAddressReserve(&p, n, 0, 0, 0))
	ok(t, caller.CuMemMap(p, n, 0, h, 0))
	ok(t, caller.CuMemSetAccess(p, n, accessTo(0, readWrite), 1))
	return p, func() {
		ok(t, caller.CuMemUnmap(p, n))
		ok(t, caller.CuMemAddressFree(p, n))
		ok(t, caller.CuMemRelease(h))
	}
}

// exported returns an fd of the memory, closed when the test ends.
func exported(t testing.TB, h sys.CUmemGenericAllocationHandle) *os.File {
	t.Helper()
	f := export(t, h)
	t.Cleanup(func() { f.Close() })
	return f
}

// pattern returns n bytes that are no others'.
func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed)
	}
	return b
}
