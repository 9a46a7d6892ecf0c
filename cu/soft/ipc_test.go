package soft

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/stretchr/testify/require"
)

func init() {
	children["ipc owner"] = childIPCOwner
	children["ipc openers"] = childIPCOpeners
}

const lazyPeers = uint32(sys.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)

// childIPCOwner makes memory of 4 MiB full of sevens on each device,
// prints their handles, and frees it when its input ends.
func childIPCOwner() {
	must(caller.CuInit(0))
	n := new(int32)
	must(caller.CuDeviceGetCount(n))
	for d := range sys.CUdevice(*n) {
		ctx, p, h := new(sys.CUcontext), new(sys.CUdeviceptr), new(sys.CUipcMemHandle)
		must(caller.CuDevicePrimaryCtxRetain(ctx, d))
		c := caller.With(*ctx)
		must(c.CuMemAlloc_v2(p, 4*MiB))
		must(c.CuMemsetD8_v2(*p, 7, 4*MiB))
		must(c.CuCtxSynchronize())
		must(c.CuIpcGetMemHandle(h, *p))
		fmt.Println(hex.EncodeToString(h.Reserved[:]))
	}
	childWait()
	for d := range sys.CUdevice(*n) {
		must(caller.CuDevicePrimaryCtxRelease_v2(d)) // which frees it
	}
}

// ipcOwner starts one and returns the handles of its memory, by device.
func ipcOwner(t testing.TB, env ...string) (*child, []sys.CUipcMemHandle) {
	t.Helper()
	c := start(t, "ipc owner", env)
	var all []sys.CUipcMemHandle
	for line := c.line(t); line != "ready"; line = c.line(t) {
		all = append(all, memHandle(line))
	}
	return c, all
}

func memHandle(text string) (h sys.CUipcMemHandle) {
	if _, err := hex.Decode(h.Reserved[:], []byte(text)); err != nil {
		panic(err)
	}
	return h
}

// Memory counts once, whoever has it, until nobody has; and what says that its
// owner has it goes with the owner.
func TestIPCAccounting(t *testing.T) {
	c := inContext(t, 0)
	before := freeMemory(t, c)
	owner, handles := ipcOwner(t)
	require.Equal(t, before-4*MiB, freeMemory(t, c))
	p := new(sys.CUdeviceptr)
	for range 3 {
		ok(t, c.CuIpcOpenMemHandle_v2(p, handles[0], lazyPeers))
	}
	require.Equal(t, before-4*MiB, freeMemory(t, c))
	owner.end(t)
	require.Equal(t, before-4*MiB, freeMemory(t, c), "the opener keeps it")
	b := make([]byte, 1)
	ok(t, c.CuMemcpyDtoH_v2(at(b), *p+4*MiB-1, 1))
	require.EqualValues(t, 7, b[0])
	for range 3 {
		require.Equal(t, before-4*MiB, freeMemory(t, c))
		ok(t, c.CuIpcCloseMemHandle(*p))
	}
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuIpcCloseMemHandle(*p))
	require.Equal(t, before, freeMemory(t, c))
	require.Zero(t, memoryFiles(t))
	require.Empty(t, markers(t))
}

// The files of a killed owner are removed by the next start.
func TestIPCFilesAreSwept(t *testing.T) { // invariant 8
	owner, _ := ipcOwner(t)
	require.Len(t, markers(t), 3, "of two memories and their owner")
	owner.kill()
	require.Len(t, markers(t), 3)
	require.Equal(t, "CUDA_SUCCESS <nil>", output(t, "init"))
	require.Empty(t, markers(t))
}

// markers are the files that say that somebody shares memory or events.
func markers(t testing.TB) (all []string) {
	for _, pattern := range []string{"ipc-*", "event-*"} {
		names, err := filepath.Glob(filepath.Join(driver.config().dir, pattern))
		require.NoError(t, err)
		all = append(all, names...)
	}
	return all
}

// Memory of another process is not this one's to free, and wholly given back
// with the context.
func TestIPCMemoryIsNotFreed(t *testing.T) {
	owner, handles := ipcOwner(t)
	p := new(sys.CUdeviceptr)
	func() {
		c := initialised(t)
		ctx := new(sys.CUcontext)
		ok(t, c.CuDevicePrimaryCtxRetain(ctx, 0))
		defer func() { ok(t, c.CuDevicePrimaryCtxRelease_v2(0)) }()
		c = c.With(*ctx)
		ok(t, c.CuIpcOpenMemHandle(p, handles[0], lazyPeers))
		want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuMemFree_v2(*p))
		want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuMemFreeAsync(*p, 0))
		want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuIpcCloseMemHandle(*p+1))
		want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuIpcGetMemHandle(new(sys.CUipcMemHandle), *p))
		base, n := new(sys.CUdeviceptr), new(uintptr)
		ok(t, c.CuMemGetAddressRange_v2(base, n, *p+100))
		require.Equal(t, *p, *base)
		require.EqualValues(t, 4*MiB, *n)
	}()
	driver.mu.Lock()
	require.Nil(t, driver.space.reservation(uintptr(*p)))
	driver.mu.Unlock()
	owner.end(t)
}

// The last close waits for the work of its context, others do not.
func TestIPCCloseWaits(t *testing.T) {
	c := inContext(t, 0)
	owner, handles := ipcOwner(t)
	s := newStream(t, c, nonBlocking)
	p := new(sys.CUdeviceptr)
	ok(t, c.CuIpcOpenMemHandle_v2(p, handles[0], lazyPeers))
	ok(t, c.CuIpcOpenMemHandle_v2(p, handles[0], lazyPeers))
	open := block(t, c, s)
	b := hostMemory(t, c, 1)
	ok(t, c.CuMemcpyDtoHAsync_v2(at(b), *p, 1, s))
	ok(t, c.CuIpcCloseMemHandle(*p))
	closed := make(chan sys.CUresult)
	go func() { closed <- c.CuIpcCloseMemHandle(*p) }()
	select {
	case <-closed:
		t.Error("closed while the memory was being copied")
	case <-time.After(100 * time.Millisecond):
	}
	open()
	require.Equal(t, sys.CUDA_SUCCESS, <-closed)
	ok(t, c.CuStreamSynchronize(s))
	require.EqualValues(t, 7, b[0])
	owner.end(t)
}

// childIPCOpeners opens each handle that it is told in device 0's context and
// prints the results.
func childIPCOpeners() {
	must(caller.CuInit(0))
	ctx := new(sys.CUcontext)
	must(caller.CuDevicePrimaryCtxRetain(ctx, 0))
	c := caller.With(*ctx)
	var results []any
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		results = append(results, c.CuIpcOpenMemHandle_v2(new(sys.CUdeviceptr), memHandle(in.Text()), lazyPeers))
	}
	fmt.Println(results...)
}

// openers returns the results of a process that opens the memory.
func openers(t testing.TB, handles []sys.CUipcMemHandle, env ...string) []string {
	t.Helper()
	c := start(t, "ipc openers", env)
	for _, h := range handles {
		fmt.Fprintln(c.in, hex.EncodeToString(h.Reserved[:]))
	}
	require.NoError(t, c.in.Close())
	line := c.line(t)
	c.end(t)
	return strings.Fields(line)
}

// A copy of the directory is the same machine, and does not have the memory: that is told
// apart from an owner that has ended, and an event is not made up.
func TestIPCOfACopiedDirectory(t *testing.T) {
	here, copied := filepath.Join(t.TempDir(), "store"), filepath.Join(t.TempDir(), "store")
	require.NoError(t, os.Mkdir(copied, 0o700))
	owner, handles := ipcOwner(t, envDir+"="+here)
	identity, err := os.ReadFile(filepath.Join(here, machineName))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(copied, machineName), identity, 0o600))
	require.Equal(t, []string{"CUDA_ERROR_MAP_FAILED"}, openers(t, handles[:1], envDir+"="+copied))
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(filepath.Dir(here), link))
	require.Equal(t, []string{"CUDA_SUCCESS"}, openers(t, handles[:1], envDir+"="+filepath.Join(link, "store")), "by another path")
	owner.end(t)
	require.Equal(t, []string{"CUDA_ERROR_INVALID_HANDLE"}, openers(t, handles[:1], envDir+"="+here))

	c := inContext(t, 0)
	h := ipcHandle{Magic: eventMagic, Process: [8]byte{1}, File: sharedMemoryDir(), Place: driver.store.place}
	event := new(sys.CUevent)
	ok(t, c.CuIpcOpenEventHandle(event, sys.CUipcEventHandle{Reserved: h.encode(driver.store)}))
	ok(t, c.CuEventDestroy_v2(*event))
	h.Place++
	want(t, sys.CUDA_ERROR_MAP_FAILED, c.CuIpcOpenEventHandle(event, sys.CUipcEventHandle{Reserved: h.encode(driver.store)}))
}

// A context reaches the memory of its own device and of so many others.
func TestTooManyPeers(t *testing.T) {
	env := []string{"GPUFD_SOFT_DEVICES=11", "GPUFD_SOFT_DIR=" + filepath.Join(t.TempDir(), "store")}
	owner, handles := ipcOwner(t, env...)
	results := openers(t, handles, env...)
	for i, r := range results {
		if i <= maxPeers {
			require.Equal(t, "CUDA_SUCCESS", r, i)
		} else {
			require.Equal(t, "CUDA_ERROR_TOO_MANY_PEERS", r, i)
		}
	}
	require.Len(t, results, 11)
	require.Equal(t, []string{"CUDA_SUCCESS", "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"}, openers(t, handles[:2], append(env, "GPUFD_SOFT_PEERS=0")...))
	require.Equal(t, []string{"CUDA_SUCCESS"}, openers(t, handles[3:4], append(env, "CUDA_VISIBLE_DEVICES=0")...), "hidden")
	require.Equal(t, []string{"CUDA_ERROR_NOT_SUPPORTED"}, openers(t, handles[:1], append(env, "GPUFD_SOFT_IPC=0")...))
	require.Equal(t, []string{"CUDA_ERROR_INVALID_VALUE"}, openers(t, handles[:1]), "of another store")
	owner.end(t)
}

// Whatever bytes there are, they are no handle unless encode made them, but for the
// serial.
func FuzzIPCHandle(f *testing.F) {
	s := &store{dir: f.TempDir(), id: [16]byte{1}}
	h := ipcHandle{Magic: memMagic, Process: [8]byte{1}, Serial: [8]byte{2}, At: 3, File: 4096, Size: 100, Ordinal: 1}
	good := h.encode(s)
	f.Add(good[:])
	f.Add(memMagic[:])
	f.Add([]byte{})
	for i := range good {
		bad := good
		bad[i] ^= 0x40
		f.Add(bad[:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var bytes [64]byte
		copy(bytes[:], b)
		have, ok := decodeIPC(memMagic, bytes, s)
		want := h
		want.Serial = [8]byte(bytes[serialAt:])
		require.Equal(t, bytes == want.encode(s), ok) // nobody guesses a digest
		if ok {
			require.Equal(t, want, have)
		}
		_, ok = decodeIPC(eventMagic, bytes, s)
		require.False(t, ok)
		_, ok = decodeIPC(memMagic, bytes, &store{id: [16]byte{2}})
		require.False(t, ok)
	})
}
