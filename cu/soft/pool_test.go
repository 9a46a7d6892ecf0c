package soft

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// poolProps describes a pool of a device that can be shared.
func poolProps(dev sys.CUdevice) *sys.CUmemPoolProps {
	return &sys.CUmemPoolProps{
		AllocType:   sys.CU_MEM_ALLOCATION_TYPE_PINNED,
		HandleTypes: sys.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		Location:    sys.CUmemLocation{Type: sys.CU_MEM_LOCATION_TYPE_DEVICE, Id: int32(dev)},
	}
}

// newTestPool returns a pool of the first device, destroyed when the test ends.
func newTestPool(t testing.TB) sys.CUmemoryPool {
	t.Helper()
	p := new(sys.CUmemoryPool)
	ok(t, caller.CuMemPoolCreate(p, poolProps(0)))
	t.Cleanup(func() { ok(t, caller.CuMemPoolDestroy(*p)) })
	return *p
}

// pooled allocates memory of a pool that the test frees.
func pooled(t testing.TB, c sys.Caller, p sys.CUmemoryPool, n uintptr, s sys.CUstream) sys.CUdeviceptr {
	t.Helper()
	q := new(sys.CUdeviceptr)
	ok(t, c.CuMemAllocFromPoolAsync(q, n, p, s))
	return *q
}

// reservedBy is how many bytes a pool holds.
func reservedBy(t testing.TB, p sys.CUmemoryPool) uint64 {
	t.Helper()
	return poolValue(t, p, sys.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
}

// Work that is queued before the free is done; what comes later is refused, and
// what another stream has queued without waiting fails.
func TestUseAfterFree(t *testing.T) {
	c := inContext(t, 0)
	p := newTestPool(t)
	made, memory := new([2]sys.CUstream), new(sys.CUdeviceptr) // which end with the context
	ok(t, c.CuStreamCreate(&made[0], nonBlocking))
	ok(t, c.CuStreamCreate(&made[1], nonBlocking))
	ok(t, c.CuMemAlloc_v2(memory, 2*MiB))
	s, other, r := made[0], made[1], *memory
	open, openOther := block(t, c, s), block(t, c, other)
	q := pooled(t, c, p, MiB, s)
	ok(t, c.CuMemsetD8Async(q, 5, MiB, s))
	ok(t, c.CuMemcpyDtoDAsync_v2(r, q, MiB, s))
	ok(t, c.CuMemcpyDtoDAsync_v2(r+MiB, q, MiB, other))
	ok(t, c.CuMemFreeAsync(q, s))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuMemsetD8Async(q, 6, MiB, s))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuMemFreeAsync(q, other))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuMemFree_v2(q))
	open()
	ok(t, c.CuStreamSynchronize(s))
	got := make([]byte, 1)
	ok(t, c.CuMemcpyDtoHAsync_v2(at(got), r+MiB-1, 1, s))
	require.EqualValues(t, 5, got[0])
	openOther()
	want(t, sys.CUDA_ERROR_ILLEGAL_ADDRESS, c.CuCtxSynchronize())
	ok(t, c.CuDevicePrimaryCtxReset_v2(0))
}

// Memory is handed out again where nobody can still be using it.
func TestReuse(t *testing.T) {
	c := inContext(t, 0)
	p := newTestPool(t)
	s, other := newStream(t, c, nonBlocking), newStream(t, c, nonBlocking)
	ok(t, setPoolValue(p, sys.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, math.MaxUint64))
	// swap frees memory in s and allocates as much in another stream, and says
	// whether that took more memory.
	swap := func(in sys.CUstream, done bool) (grew bool) {
		open := block(t, c, s)
		ok(t, c.CuMemFreeAsync(pooled(t, c, p, MiB, s), s))
		if done {
			open()
			ok(t, c.CuStreamSynchronize(s))
		}
		before := reservedBy(t, p)
		q := pooled(t, c, p, MiB, in)
		grew = reservedBy(t, p) > before
		open()
		ok(t, c.CuMemFreeAsync(q, in))
		ok(t, c.CuCtxSynchronize())
		ok(t, caller.CuMemPoolTrimTo(p, 0))
		require.Zero(t, reservedBy(t, p))
		return grew
	}
	require.False(t, swap(s, false), "the order of a stream is enough")
	require.True(t, swap(other, false))
	require.False(t, swap(other, true))
	ok(t, setPoolValue(p, sys.CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 0))
	require.True(t, swap(other, true))
	require.False(t, swap(s, true))
}

// Without room a stream waits for what another one frees, if it may.
func TestReuseByWaiting(t *testing.T) {
	c := inContext(t, 0)
	p := newTestPool(t)
	s, other := newStream(t, c, nonBlocking), newStream(t, c, nonBlocking)
	open := block(t, c, s)
	q := pooled(t, c, p, 40*MiB, s)
	ok(t, c.CuMemsetD8Async(q, 1, 40*MiB, s))
	ok(t, c.CuMemFreeAsync(q, s))
	ok(t, setPoolValue(p, sys.CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0))
	want(t, sys.CUDA_ERROR_OUT_OF_MEMORY, c.CuMemAllocFromPoolAsync(new(sys.CUdeviceptr), 40*MiB, p, other))
	ok(t, setPoolValue(p, sys.CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 1))
	q = pooled(t, c, p, 40*MiB, other)
	require.True(t, waits(other))
	ok(t, c.CuMemsetD8Async(q, 2, 40*MiB, other))
	want(t, sys.CUDA_ERROR_NOT_READY, c.CuStreamQuery(other))
	open()
	got := make([]byte, 1)
	ok(t, c.CuMemcpyDtoHAsync_v2(at(got), q, 1, other))
	require.EqualValues(t, 2, got[0])
	ok(t, c.CuMemFreeAsync(q, other))
	ok(t, c.CuCtxSynchronize())
}

// Memory that pools only keep is given back when somebody else wants memory, of any
// kind.
func TestKeptMemoryIsGivenBackForOthers(t *testing.T) {
	c := inContext(t, 0)
	p, another := newTestPool(t), newTestPool(t)
	for name, take := range map[string]func(*testing.T){
		"cuMemAlloc": func(t *testing.T) { linear(t, c, 40*MiB) },
		"cuMemCreate": func(t *testing.T) {
			h := new(sys.CUmemGenericAllocationHandle)
			ok(t, caller.CuMemCreate(h, 40*MiB, propOf(0), 0))
			ok(t, caller.CuMemRelease(*h))
		},
		"another pool": func(t *testing.T) { ok(t, c.CuMemFreeAsync(pooled(t, c, another, 40*MiB, 0), 0)) },
	} {
		t.Run(name, func(t *testing.T) {
			ok(t, setPoolValue(p, sys.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, math.MaxUint64))
			ok(t, c.CuMemFreeAsync(pooled(t, c, p, 40*MiB, 0), 0))
			ok(t, c.CuCtxSynchronize())
			require.EqualValues(t, 40*MiB, reservedBy(t, p))
			take(t)
			require.Zero(t, reservedBy(t, p))
		})
		ok(t, c.CuCtxSynchronize())
	}
}

// A destroyed pool's memory goes with the last free, threshold or not.
func TestDestroyedPool(t *testing.T) {
	c := inContext(t, 0)
	before := freeMemory(t, c)
	p := new(sys.CUmemoryPool)
	ok(t, caller.CuMemPoolCreate(p, poolProps(0)))
	ok(t, setPoolValue(*p, sys.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, math.MaxUint64))
	a, b := pooled(t, c, *p, MiB, 0), pooled(t, c, *p, MiB, 0)
	files := len(poolFiles(t))
	ok(t, c.CuMemFreeAsync(a, 0))
	ok(t, c.CuCtxSynchronize())
	require.Equal(t, before-2*MiB, freeMemory(t, c))
	ok(t, caller.CuMemPoolDestroy(*p))
	misused(t, 1)
	require.Equal(t, before-MiB, freeMemory(t, c))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, caller.CuMemPoolDestroy(*p))
	require.Len(t, poolFiles(t), files-1, "the pool's own stays: what its lock keeps is the memory")
	ok(t, c.CuMemsetD8_v2(b, 1, MiB))
	ok(t, c.CuMemFreeAsync(b, 0))
	ok(t, c.CuStreamSynchronize(0))
	require.Equal(t, before, freeMemory(t, c))
	require.Len(t, poolFiles(t), files-3)
}

// The real driver crashes on what was never a pool.
func TestNoPool(t *testing.T) {
	c := inContext(t, 0)
	first := new(sys.CUmemoryPool)
	ok(t, caller.CuDeviceGetDefaultMemPool(first, 0))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, caller.CuMemPoolDestroy(*first))
	for _, call := range []func(sys.CUmemoryPool) sys.CUresult{
		caller.CuMemPoolDestroy,
		func(p sys.CUmemoryPool) sys.CUresult { return caller.CuMemPoolTrimTo(p, 0) },
		func(p sys.CUmemoryPool) sys.CUresult { return caller.CuDeviceSetMemPool(0, p) },
		func(p sys.CUmemoryPool) sys.CUresult {
			return c.CuMemAllocFromPoolAsync(new(sys.CUdeviceptr), 1, p, 0)
		},
	} {
		want(t, sys.CUDA_ERROR_INVALID_VALUE, call(0))
		require.Empty(t, Misuses())
		want(t, sys.CUDA_ERROR_INVALID_VALUE, call(0x1234))
		misused(t, 1)
	}
	want(t, sys.CUDA_ERROR_INVALID_VALUE, caller.CuMemPoolSetAttribute(*first, sys.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, nil))
	misused(t, 1)
}

// Another device's copies need rights, which all memory of the pool has at
// once.
func TestPoolPeers(t *testing.T) {
	c, peer := inContext(t, 0), inContext(t, 1)
	p := newTestPool(t)
	q := pooled(t, c, p, 4096, 0)
	b := []byte{1}
	want(t, sys.CUDA_ERROR_INVALID_VALUE, peer.CuMemcpyHtoD_v2(q, at(b), 1))
	ok(t, caller.CuMemPoolSetAccess(p, accessTo(1, readOnly), 1))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, peer.CuMemcpyHtoD_v2(q, at(b), 1))
	ok(t, peer.CuMemcpyDtoH_v2(at(b), q, 1))
	ok(t, caller.CuMemPoolSetAccess(p, accessTo(1, readWrite), 1))
	later := pooled(t, c, p, 4096, 0)
	ok(t, peer.CuMemcpyHtoD_v2(q, at(b), 1))
	ok(t, peer.CuMemcpyHtoD_v2(later, at(b), 1))
	ok(t, caller.CuMemPoolSetAccess(p, accessTo(1, 0), 1))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, peer.CuMemcpyDtoH_v2(at(b), later, 1))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, caller.CuMemPoolSetAccess(p, accessTo(0, 0), 1))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, caller.CuDeviceSetMemPool(1, p))
	ok(t, c.CuMemFreeAsync(q, 0))
	ok(t, c.CuMemFreeAsync(later, 0))
	ok(t, c.CuCtxSynchronize())
}

// childPool makes a pool with 4 MiB of sevens, prints its fd and the memory's
// name and keeps them until its input ends or it is killed. Then it frees the
// memory, and after a line of input ends.
func childPool() {
	c, p := childContext(), new(sys.CUmemoryPool)
	must(caller.CuMemPoolCreate(p, poolProps(0)))
	q, data := new(sys.CUdeviceptr), new(sys.CUmemPoolPtrExportData)
	must(c.CuMemAllocFromPoolAsync(q, 4*MiB, *p, 0))
	must(c.CuMemsetD8_v2(*q, 7, 4*MiB))
	must(c.CuCtxSynchronize())
	f, r := exportPool(*p)
	must(r)
	must(caller.CuMemPoolExportPointer(data, *q))
	fmt.Println(f.Fd(), hex.EncodeToString(data.Reserved[:]))
	in := bufio.NewReader(os.Stdin)
	_, _ = in.ReadString('\n')
	must(c.CuMemFreeAsync(*q, 0))
	must(c.CuCtxSynchronize())
	fmt.Println("freed")
	_, _ = in.ReadString('\n')
}

// childImportPool imports fd 3 and the memory that its first line names, writes 9 to its
// first byte and keeps both until its input ends or it is killed.
func childImportPool() {
	c := childContext()
	p, q := new(sys.CUmemoryPool), new(sys.CUdeviceptr)
	must(caller.CuMemPoolImportFromShareableHandle(p, 3, posixFD, 0))
	name, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	must(c.CuMemPoolImportPointer(q, *p, pointerData(strings.TrimSpace(name))))
	must(c.CuMemsetD8_v2(*q, 9, 1))
	must(c.CuCtxSynchronize())
	childWait()
}

func childContext() sys.Caller {
	must(caller.CuInit(0))
	ctx := new(sys.CUcontext)
	must(caller.CuDevicePrimaryCtxRetain(ctx, 0))
	return caller.With(*ctx)
}

// pointerData reads what names memory of a pool.
func pointerData(text string) *sys.CUmemPoolPtrExportData {
	data := new(sys.CUmemPoolPtrExportData)
	b, err := hex.DecodeString(text)
	if err != nil || copy(data.Reserved[:], b) != len(data.Reserved) {
		panic(fmt.Sprint("no pointer: ", text))
	}
	return data
}

// exporter starts a process with a pool, whose fd is opened here.
func exporter(t testing.TB) (peer *child, f *os.File, data *sys.CUmemPoolPtrExportData) {
	t.Helper()
	peer = start(t, "pool", nil)
	var fd int
	var text string
	_, err := fmt.Sscan(peer.line(t), &fd, &text)
	require.NoError(t, err)
	return peer, inheritFrom(t, peer, fd), pointerData(text)
}

// inheritFrom opens a child's descriptor on a description of its own.
func inheritFrom(t testing.TB, c *child, fd int) *os.File {
	t.Helper()
	f, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/%d", c.Process.Pid, fd), os.O_RDWR, 0)
	require.NoError(t, err)
	require.NoError(t, flock(int(f.Fd()), unix.LOCK_SH))
	t.Cleanup(func() { f.Close() })
	return f
}

// imports makes a pool of a descriptor, destroyed when the test ends.
func imports(t testing.TB, f *os.File) sys.CUmemoryPool {
	t.Helper()
	p := new(sys.CUmemoryPool)
	ok(t, caller.CuMemPoolImportFromShareableHandle(p, f.Fd(), posixFD, 0))
	t.Cleanup(func() { ok(t, caller.CuMemPoolDestroy(*p)) })
	return *p
}

// poolFiles lists the files of pools and of their memory.
func poolFiles(t testing.TB) (names []string) {
	t.Helper()
	for _, pattern := range []string{"gpu*", "pool-*"} {
		found, err := filepath.Glob(filepath.Join(driver.config().dir, pattern))
		require.NoError(t, err)
		names = append(names, found...)
	}
	return names
}

// Memory that only a killed process had is free, and its files go.
func TestPoolKilled(t *testing.T) { // invariant 8
	c := inContext(t, 0)
	before := freeMemory(t, c)
	peer, f, _ := exporter(t)
	require.Equal(t, before-4*MiB, freeMemory(t, c))
	require.NoError(t, f.Close())
	peer.kill()
	require.Len(t, poolFiles(t), 2, "nobody has cleaned up yet")
	require.Equal(t, before, freeMemory(t, c))
	require.Empty(t, poolFiles(t))
}

// The next start cleans up too, also a pool without memory.
func TestPoolKilledReclaimedByStart(t *testing.T) {
	inContext(t, 0)
	peer, f, _ := exporter(t)
	require.NoError(t, f.Close())
	fmt.Fprintln(peer.in)
	require.Equal(t, "freed", peer.line(t))
	peer.kill()
	require.Len(t, poolFiles(t), 1)
	require.Equal(t, "CUDA_SUCCESS <nil>", output(t, "init"))
	require.Empty(t, poolFiles(t))
}

// The exporter's death costs an importer nothing: what it has stays, and it can
// import more of the pool.
func TestPoolExporterKilled(t *testing.T) { // as D10
	c := inContext(t, 0)
	before := freeMemory(t, c)
	peer, f, data := exporter(t)
	p := imports(t, f)
	q, again := new(sys.CUdeviceptr), new(sys.CUdeviceptr)
	peer.kill()
	for range 2 {
		ok(t, c.CuMemPoolImportPointer(q, p, data))
		b := make([]byte, 1)
		ok(t, c.CuMemcpyDtoH_v2(at(b), *q, 1))
		require.EqualValues(t, 7, b[0])
		ok(t, c.CuMemPoolImportPointer(again, p, data))
		require.Equal(t, *q, *again, "the same memory has the same address")
		require.Equal(t, before-4*MiB, freeMemory(t, c))
		ok(t, c.CuMemFree_v2(*q))
		want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuMemFree_v2(*again))
		require.Equal(t, before-4*MiB, freeMemory(t, c), "the pool has it")
	}
	require.NoError(t, f.Close())
	require.Equal(t, before-4*MiB, freeMemory(t, c))
}

// A process that only has a pool's fd, and does not use the driver, keeps the
// pool's memory.
func TestPoolFdAloneKeeps(t *testing.T) { // as D11
	c := inContext(t, 0)
	before := freeMemory(t, c)
	peer, f, _ := exporter(t)
	keeper := start(t, "poolfd alone", nil, f)
	require.Equal(t, "ready", keeper.line(t))
	require.NoError(t, f.Close())
	peer.kill()
	require.Equal(t, before-4*MiB, freeMemory(t, c))
	require.Equal(t, "CUDA_SUCCESS <nil>", output(t, "init"))
	require.Equal(t, before-4*MiB, freeMemory(t, c))
	keeper.kill()
	require.Equal(t, before, freeMemory(t, c))
	require.Empty(t, poolFiles(t))
}

// An importer that is killed leaves the exporter's memory as it is.
func TestPoolImporterKilled(t *testing.T) {
	c := inContext(t, 0)
	before := freeMemory(t, c)
	p := newTestPool(t)
	q, data := pooled(t, c, p, MiB, 0), new(sys.CUmemPoolPtrExportData)
	f, r := exportPool(p)
	ok(t, r)
	ok(t, caller.CuMemPoolExportPointer(data, q))
	peer := start(t, "import pool", nil, f)
	fmt.Fprintln(peer.in, hex.EncodeToString(data.Reserved[:]))
	require.NoError(t, f.Close())
	require.Equal(t, "ready", peer.line(t))
	require.Equal(t, before-MiB, freeMemory(t, c), "counted once")
	peer.kill()
	b := make([]byte, 1)
	ok(t, c.CuMemcpyDtoH_v2(at(b), q, 1))
	require.EqualValues(t, 9, b[0])
	ok(t, c.CuMemFreeAsync(q, 0))
	ok(t, c.CuCtxSynchronize())
	require.Equal(t, before, freeMemory(t, c))
}

// An exporter that gives memory back first, which is against the rules, costs
// the importer nothing, and the memory goes with the importer's.
func TestPoolExporterFreesFirst(t *testing.T) {
	c := inContext(t, 0)
	before := freeMemory(t, c)
	peer, f, data := exporter(t)
	p, q := imports(t, f), new(sys.CUdeviceptr)
	require.NoError(t, f.Close())
	ok(t, c.CuMemPoolImportPointer(q, p, data))
	fmt.Fprintln(peer.in)
	require.Equal(t, "freed", peer.line(t))
	require.Equal(t, before-4*MiB, freeMemory(t, c))
	ok(t, c.CuMemsetD8_v2(*q, 1, 4*MiB))
	ok(t, c.CuMemFreeAsync(*q, 0))
	ok(t, c.CuCtxSynchronize())
	require.Equal(t, before, freeMemory(t, c))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuMemPoolImportPointer(q, p, data))
	peer.end(t)
}

// A pointer's data is refused if it names memory of another pool, or none.
func TestPoolPointersAreChecked(t *testing.T) {
	c := inContext(t, 0)
	mine, others := newTestPool(t), newTestPool(t)
	q := pooled(t, c, mine, MiB, 0)
	data, out := new(sys.CUmemPoolPtrExportData), new(sys.CUdeviceptr)
	want(t, sys.CUDA_ERROR_INVALID_VALUE, caller.CuMemPoolExportPointer(data, q)) // the pool comes first
	f, r := exportPool(mine)
	ok(t, r)
	defer f.Close()
	ok(t, caller.CuMemPoolExportPointer(data, q))
	for _, wrong := range []sys.CUdeviceptr{0, q + 1, 4096, linear(t, c, 4096)} {
		want(t, sys.CUDA_ERROR_INVALID_VALUE, caller.CuMemPoolExportPointer(data, wrong))
	}
	g, r := exportPool(others)
	ok(t, r)
	defer g.Close()
	p := imports(t, f)
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuMemPoolImportPointer(out, imports(t, g), data))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuMemPoolImportPointer(out, mine, data))
	for i := range 40 {
		bad := *data
		bad.Reserved[i] ^= 0x10
		r := c.CuMemPoolImportPointer(out, p, &bad)
		if i >= 32 && r == sys.CUDA_SUCCESS { // another size that fits the file
			ok(t, c.CuMemFree_v2(*out))
			continue
		}
		require.Equal(t, sys.CUDA_ERROR_INVALID_VALUE, r, i)
	}
	ok(t, c.CuMemPoolImportPointer(out, p, data))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, caller.CuMemPoolExportPointer(data, *out))
	ok(t, c.CuMemFreeAsync(*out, 0))
	ok(t, c.CuMemFreeAsync(q, 0))
	ok(t, c.CuCtxSynchronize())
}

// Memory whose file somebody has cut short is not imported.
func TestImportDamagedPoolMemory(t *testing.T) {
	c := inContext(t, 0)
	mine := newTestPool(t)
	q, data := pooled(t, c, mine, MiB, 0), new(sys.CUmemPoolPtrExportData)
	f, r := exportPool(mine)
	ok(t, r)
	defer f.Close()
	ok(t, caller.CuMemPoolExportPointer(data, q))
	p, out := imports(t, f), new(sys.CUdeviceptr)
	require.NoError(t, os.Truncate(poolFiles(t)[0], MiB))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuMemPoolImportPointer(out, p, data))
	ok(t, c.CuMemFreeAsync(q, 0))
	ok(t, c.CuCtxSynchronize())
}

// Pools and memory of cuMemCreate are not taken for each other, nor anything
// else for a pool.
func TestImportOthersAsPool(t *testing.T) {
	initialised(t)
	out, h := new(sys.CUmemoryPool), new(sys.CUmemGenericAllocationHandle)
	for name, fd := range otherFiles(t) {
		r := caller.CuMemPoolImportFromShareableHandle(out, uintptr(fd), posixFD, 0)
		require.Equal(t, sys.CUDA_ERROR_UNKNOWN, r, name)
	}
	memory := exported(t, create(t, 2*MiB, 0))
	want(t, sys.CUDA_ERROR_NOT_SUPPORTED, caller.CuMemPoolImportFromShareableHandle(out, memory.Fd(), posixFD, 0))
	f, r := exportPool(newTestPool(t))
	ok(t, r)
	defer f.Close()
	want(t, sys.CUDA_ERROR_UNKNOWN, caller.CuMemImportFromShareableHandle(h, f.Fd(), posixFD))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, caller.CuMemPoolImportFromShareableHandle(out, 0, posixFD, 0))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, caller.CuMemPoolImportFromShareableHandle(out, f.Fd(), posixFD, 1))
	require.True(t, strings.Contains(f.Name(), "pool"))
	require.NoError(t, f.Truncate(100))
	want(t, sys.CUDA_ERROR_UNKNOWN, caller.CuMemPoolImportFromShareableHandle(out, f.Fd(), posixFD, 0))
	require.NoError(t, f.Truncate(trailerSize))
}

// A driver before CUDA 12.2 has no maximum and says so of any.
func TestPoolProps(t *testing.T) {
	initialised(t)
	out := new(sys.CUmemoryPool)
	for result, changes := range map[sys.CUresult][]func(*sys.CUmemPoolProps){
		sys.CUDA_ERROR_INVALID_VALUE: {
			func(p *sys.CUmemPoolProps) { p.AllocType = 0 },
			func(p *sys.CUmemPoolProps) { p.HandleTypes = 16 },
			func(p *sys.CUmemPoolProps) { p.Location.Type = 0 },
			func(p *sys.CUmemPoolProps) { p.Usage = 1 },
			func(p *sys.CUmemPoolProps) { p.Reserved[53] = 1 },
		},
		sys.CUDA_ERROR_NOT_SUPPORTED: {
			func(p *sys.CUmemPoolProps) { p.HandleTypes = sys.CU_MEM_HANDLE_TYPE_WIN32 },
			func(p *sys.CUmemPoolProps) { p.Location.Type = sys.CU_MEM_LOCATION_TYPE_HOST },
			func(p *sys.CUmemPoolProps) { p.Usage = sys.CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS },
		},
		sys.CUDA_ERROR_NOT_PERMITTED: {
			func(p *sys.CUmemPoolProps) { p.HandleTypes = sys.CU_MEM_HANDLE_TYPE_FABRIC },
		},
		sys.CUDA_ERROR_INVALID_DEVICE: {
			func(p *sys.CUmemPoolProps) { p.Location.Id = 99 },
		},
	} {
		for i, change := range changes {
			props := poolProps(0)
			change(props)
			require.Equal(t, result, caller.CuMemPoolCreate(out, props), i)
		}
	}
	want(t, sys.CUDA_ERROR_INVALID_VALUE, caller.CuMemPoolCreate(nil, poolProps(0)))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, caller.CuMemPoolCreate(out, nil))
}

// CUDA 13.0's functions by location find the same pools.
func TestPoolByLocation(t *testing.T) {
	initialised(t)
	l, a, b := &propOf(1).Location, new(sys.CUmemoryPool), new(sys.CUmemoryPool)
	const pinned = sys.CU_MEM_ALLOCATION_TYPE_PINNED
	ok(t, caller.CuMemGetDefaultMemPool(a, l, pinned))
	ok(t, caller.CuDeviceGetDefaultMemPool(b, 1))
	require.Equal(t, *a, *b)
	ok(t, caller.CuMemPoolCreate(a, poolProps(1)))
	ok(t, caller.CuMemSetMemPool(l, pinned, *a))
	ok(t, caller.CuDeviceGetMemPool(b, 1))
	require.Equal(t, *a, *b)
	ok(t, caller.CuMemPoolDestroy(*a))
	ok(t, caller.CuMemGetMemPool(a, l, pinned))
	require.NotEqual(t, *a, *b, "the default again")
	for _, r := range []sys.CUresult{
		caller.CuMemGetMemPool(a, nil, pinned), caller.CuMemGetMemPool(nil, l, pinned), caller.CuMemGetMemPool(a, l, 0),
		caller.CuMemGetDefaultMemPool(a, nil, pinned), caller.CuMemSetMemPool(nil, pinned, *a), caller.CuMemSetMemPool(l, 0, *a),
	} {
		want(t, sys.CUDA_ERROR_INVALID_VALUE, r)
	}
}

// Memory of a context that ends before the stream of another one in which it is
// freed goes once.
func TestFreeLinearAsyncOutlivesTheContext(t *testing.T) {
	c := inContext(t, 1)
	s := newStream(t, c, nonBlocking)
	open := block(t, c, s)
	owner, q := new(sys.CUcontext), new(sys.CUdeviceptr)
	ok(t, caller.CuCtxCreate_v2(owner, 0, 0))
	ok(t, caller.With(*owner).CuMemAlloc_v2(q, MiB))
	ok(t, c.CuMemFreeAsync(*q, s))
	ok(t, caller.CuCtxDestroy_v2(*owner))
	open()
	ok(t, c.CuStreamSynchronize(s))
}

// A small allocation does not take a large block that the pool has idle.
func TestSmallAllocationLeavesLargeBlocks(t *testing.T) {
	c := inContext(t, 0)
	p := newTestPool(t)
	ok(t, setPoolValue(p, sys.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, math.MaxUint64))
	ok(t, c.CuMemFreeAsync(pooled(t, c, p, 8*MiB, 0), 0))
	ok(t, c.CuCtxSynchronize())
	require.EqualValues(t, 8*MiB, reservedBy(t, p))
	small := pooled(t, c, p, MiB, 0)
	require.EqualValues(t, 9*MiB, reservedBy(t, p))
	half := pooled(t, c, p, 4*MiB, 0)
	require.EqualValues(t, 9*MiB, reservedBy(t, p), "half of a block is taken")
	ok(t, c.CuMemFreeAsync(small, 0))
	ok(t, c.CuMemFreeAsync(half, 0))
	ok(t, c.CuCtxSynchronize())
}
