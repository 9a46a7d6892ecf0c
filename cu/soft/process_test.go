package soft

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Two processes share memory through an fd; what one writes the other sees.
func TestTwoProcesses(t *testing.T) {
	c := inContext(t, 0)
	before := freeMemory(t, c)
	p, h := buffer(t, 16*MiB, 0)
	ok(t, c.CuMemsetD8_v2(p, 7, 16*MiB))
	ok(t, c.CuCtxSynchronize())
	f := exported(t, h)
	peer := start(t, "import", nil, f)
	require.Equal(t, "7", peer.line(t))
	require.Equal(t, "ready", peer.line(t))
	got := make([]byte, 2)
	ok(t, c.CuMemcpyDtoH_v2(at(got), p, 2))
	require.Equal(t, []byte{9, 7}, got)
	require.Equal(t, before-16*MiB, freeMemory(t, c), "counted once")
	peer.end(t)
	require.Equal(t, before-16*MiB, freeMemory(t, c))
}

// A process that is stopped while it has the directory's lock does not stop those that come
// and go while the memory stays: in the same directory, or in one of another owner.
func TestVisitorsTakeNoLock(t *testing.T) {
	c := inContext(t, 0)
	p, h := buffer(t, 16*MiB, 0)
	ok(t, c.CuMemsetD8_v2(p, 7, 16*MiB))
	ok(t, c.CuCtxSynchronize())
	here, other := driver.config().dir, filepath.Join(t.TempDir(), "other")
	identity, err := os.ReadFile(filepath.Join(here, machineName))
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(other, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(other, machineName), identity, 0o600))
	for name, dir := range map[string]string{"same": here, "other": other} {
		t.Run(name, func(t *testing.T) {
			peer := start(t, "visit", []string{envDir + "=" + dir}, exported(t, h))
			require.Equal(t, "ready", peer.line(t))
			lock, err := openFile(filepath.Join(dir, lockName), unix.O_RDWR)
			require.NoError(t, err)
			defer unix.Close(lock)
			require.NoError(t, flock(lock, unix.LOCK_EX))
			defer time.AfterFunc(20*time.Second, func() {
				t.Error("the visitor waits for the lock, or is too slow")
				peer.Process.Kill()
			}).Stop()
			_, err = peer.in.Write([]byte("\n"))
			require.NoError(t, err)
			require.Equal(t, "7", peer.line(t))
			peer.end(t)
		})
	}
}

// The memory of a killed process is free, and its file goes.
func TestKilled(t *testing.T) { // D10, invariant 8
	c := inContext(t, 0)
	before := freeMemory(t, c)
	peer := start(t, "hold", nil)
	require.Equal(t, "ready", peer.line(t))
	require.Equal(t, before-16*MiB, freeMemory(t, c))
	peer.kill()
	require.Equal(t, 1, memoryFiles(t), "nobody has cleaned up yet")
	require.Equal(t, before, freeMemory(t, c))
	require.Zero(t, memoryFiles(t))
}

// The next start cleans up too.
func TestKilledReclaimedByStart(t *testing.T) { // fault 7
	peer := start(t, "hold", nil)
	require.Equal(t, "ready", peer.line(t))
	peer.kill()
	require.Equal(t, 1, memoryFiles(t))
	require.Equal(t, "CUDA_SUCCESS <nil>", output(t, "init"))
	require.Zero(t, memoryFiles(t))
}

// memoryFiles counts the files of device memory.
func memoryFiles(t testing.TB) int {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(driver.config().dir, "gpu*"))
	require.NoError(t, err)
	return len(names)
}

// The importer's data survives the producer, killed before it maps.
func TestProducerKilled(t *testing.T) { // D10, faults 2 and 3
	c := inContext(t, 0)
	before := freeMemory(t, c)
	p, h := buffer(t, 16*MiB, 0)
	ok(t, c.CuMemsetD8_v2(p, 7, 16*MiB))
	ok(t, c.CuCtxSynchronize())
	f := export(t, h)
	producer := start(t, "import", nil, f) // stands for a second owner
	require.Equal(t, "7", producer.line(t))
	require.Equal(t, "ready", producer.line(t))
	producer.kill()
	hi := imported(t, f)
	require.NoError(t, f.Close())
	q := reserved(t, 16*MiB)
	mapped(t, q, 16*MiB, hi)
	ok(t, caller.CuMemSetAccess(q, 16*MiB, accessTo(0, readOnly), 1))
	got := make([]byte, 2)
	ok(t, c.CuMemcpyDtoH_v2(at(got), q, 2))
	require.Equal(t, []byte{9, 7}, got)
	require.Equal(t, before-16*MiB, freeMemory(t, c))
}

// A process that only has the fd, and does not use the driver, keeps the
// memory.
func TestFdAloneKeeps(t *testing.T) { // D11
	c := inContext(t, 0)
	before := freeMemory(t, c)
	var h sys.CUmemGenericAllocationHandle
	ok(t, caller.CuMemCreate(&h, 16*MiB, propOf(0), 0))
	f := export(t, h)
	keeper := start(t, "fdonly", nil, f)
	require.Equal(t, "ready", keeper.line(t))
	require.NoError(t, f.Close())
	ok(t, caller.CuMemRelease(h))
	require.Equal(t, before-16*MiB, freeMemory(t, c))
	keeper.kill()
	require.Equal(t, before, freeMemory(t, c))
}

// Any process's memory counts, and room that a killed one left is found.
func TestCapacity(t *testing.T) {
	c := inContext(t, 0)
	const chunks = testMemory / (2 * MiB)
	peer := start(t, "fill", nil)
	require.Equal(t, fmt.Sprint(chunks, " CUDA_ERROR_OUT_OF_MEMORY"), peer.line(t))
	require.Equal(t, "ready", peer.line(t))
	require.Zero(t, freeMemory(t, c))
	var h sys.CUmemGenericAllocationHandle
	want(t, sys.CUDA_ERROR_OUT_OF_MEMORY, caller.CuMemCreate(&h, 2*MiB, propOf(0), 0))
	want(t, sys.CUDA_ERROR_OUT_OF_MEMORY, c.CuMemAlloc_v2(new(sys.CUdeviceptr), 1))
	ok(t, caller.CuMemCreate(&h, 2*MiB, propOf(1), 0)) // the other device has room
	ok(t, caller.CuMemRelease(h))
	peer.kill()
	ok(t, caller.CuMemCreate(&h, testMemory, propOf(0), 0))
	ok(t, caller.CuMemRelease(h))
}

// Processes that fill the device at once get as much as there is, no more.
func TestCapacityRace(t *testing.T) {
	inContext(t, 0)
	peers := []*child{start(t, "fill", nil), start(t, "fill", nil), start(t, "fill", nil)}
	sum := 0
	for _, p := range peers {
		var n int
		_, err := fmt.Sscan(p.line(t), &n)
		require.NoError(t, err)
		sum += n
	}
	require.Equal(t, testMemory/(2*MiB), sum)
	for _, p := range peers {
		p.kill()
	}
	require.NoError(t, driver.store.sweep(2))
}

// otherFiles opens one of everything.
func otherFiles(t testing.TB) map[string]int {
	t.Helper()
	fds := map[string]int{"minus one": -1, "closed": 987654}
	add := func(name string, fd int, err error) {
		require.NoError(t, err, name)
		fds[name] = fd
		t.Cleanup(func() { unix.Close(fd) })
	}
	var pipe [2]int
	err := unix.Pipe2(pipe[:], unix.O_CLOEXEC)
	add("pipe", pipe[0], err)
	add("pipe's end", pipe[1], err)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	add("socket", pair[0], err)
	add("socket's end", pair[1], err)
	fd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC)
	add("memfd", fd, err)
	require.NoError(t, unix.Ftruncate(fd, 4*MiB))
	for name, path := range map[string]string{"directory": t.TempDir(), "null": "/dev/null", "tty": "/proc/self/status"} {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		add(name, fd, err)
	}
	path := filepath.Join(driver.config().dir, lockName)
	fd, err = unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	add("regular file", fd, err)
	fd, err = unix.Open(t.TempDir(), unix.O_PATH|unix.O_CLOEXEC, 0)
	add("path only", fd, err)
	return fds
}

// Memory that is not as its trailer says is refused: cut short, or read-only.
func TestImportDamaged(t *testing.T) {
	initialised(t)
	var h sys.CUmemGenericAllocationHandle
	f := exported(t, create(t, 2*MiB, 0))
	ro, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	require.NoError(t, err)
	defer ro.Close()
	unknown := sys.CUDA_ERROR_UNKNOWN
	want(t, unknown, caller.CuMemImportFromShareableHandle(&h, ro.Fd(), posixFD))
	_, err = f.WriteAt([]byte("G"), 2*MiB)
	require.NoError(t, err)
	want(t, unknown, caller.CuMemImportFromShareableHandle(&h, f.Fd(), posixFD))
	require.NoError(t, f.Truncate(2*MiB))
	want(t, unknown, caller.CuMemImportFromShareableHandle(&h, f.Fd(), posixFD))
	require.NoError(t, f.Truncate(8*MiB))
	want(t, unknown, caller.CuMemImportFromShareableHandle(&h, f.Fd(), posixFD))
	g := exported(t, create(t, 4*MiB, 0))
	trailer := make([]byte, trailerSize) // of 4 MiB, behind 2 MiB
	_, err = g.ReadAt(trailer, 4*MiB)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(2*MiB))
	_, err = f.WriteAt(trailer, 2*MiB)
	require.NoError(t, err)
	want(t, unknown, caller.CuMemImportFromShareableHandle(&h, f.Fd(), posixFD))
}

// The memory of a device that is not visible here, or of another store.
func TestImportHidden(t *testing.T) { // faults 39, 42
	initialised(t)
	f := exported(t, create(t, 2*MiB, 0))
	hidden := "CUDA_ERROR_INVALID_DEVICE"
	for env, result := range map[string]string{
		envVisible + "=1":                       hidden,
		envVisible + "=1,0":                     "CUDA_SUCCESS",
		envDir + "=" + t.TempDir() + "/another": hidden,
	} {
		c := start(t, "twostores", []string{env}, f)
		require.Equal(t, result, c.line(t), env)
		c.end(t)
	}
}

// A peer that cuts the file short costs this process the copy and the context,
// not its life.
//
//fault:rows 77
func TestTruncatedByPeer(t *testing.T) { // invariant 2
	c := inContext(t, 0)
	p, h := buffer(t, 4*MiB, 0)
	b := pattern(4*MiB, 1)
	ok(t, c.CuMemcpyHtoD_v2(p, at(b), 4*MiB))
	require.NoError(t, exported(t, h).Truncate(MiB))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuMemcpyDtoH_v2(wild(), p, 1)) // qemu-user takes the next fault for this one
	want(t, sys.CUDA_ERROR_ILLEGAL_ADDRESS, c.CuMemcpyDtoH_v2(at(b), p, 4*MiB))
	want(t, sys.CUDA_ERROR_ILLEGAL_ADDRESS, c.CuMemsetD8_v2(p, 0, 1))
	want(t, sys.CUDA_ERROR_ILLEGAL_ADDRESS, c.CuCtxSynchronize())
	ok(t, c.CuDevicePrimaryCtxReset_v2(0))
	driver.heal()
	fresh := inContext(t, 0)
	ok(t, fresh.CuMemsetD8_v2(p, 0, 1)) // what is left of it
	ok(t, fresh.CuMemsetD8_v2(p+2*MiB, 0, 1))
	want(t, sys.CUDA_ERROR_ILLEGAL_ADDRESS, fresh.CuCtxSynchronize())
}

// Accounting goes by what was allocated, whatever a peer does to the file.
func TestTruncatedStillCounts(t *testing.T) {
	c := inContext(t, 0)
	before := freeMemory(t, c)
	h := create(t, 4*MiB, 0)
	require.NoError(t, exported(t, h).Truncate(0))
	require.Equal(t, before-4*MiB, freeMemory(t, c))
}
