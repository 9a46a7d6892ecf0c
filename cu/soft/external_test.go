package soft

import (
	"fmt"
	"os"
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// takeExternal imports a duplicate of f, as size bytes.
func takeExternal(t testing.TB, c sys.Caller, f *os.File, size uint64) (sys.CUexternalMemory, sys.CUresult) {
	t.Helper()
	fd, err := keepFile(int(f.Fd()))
	require.NoError(t, err)
	desc := &sys.CUDA_EXTERNAL_MEMORY_HANDLE_DESC{Type: sys.CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, Size: size}
	*desc.HandleFd() = int32(fd)
	m := new(sys.CUexternalMemory)
	r := c.CuImportExternalMemory(m, desc)
	switch err := unix.Close(fd); r {
	case sys.CUDA_SUCCESS, sys.CUDA_ERROR_UNKNOWN:
		require.Equal(t, unix.EBADF, err, "the driver has closed it")
	default:
		require.NoError(t, err, "it stays the caller's")
	}
	return *m, r
}

// memfd returns memory that no driver made.
func memfd(t testing.TB, size int64) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("vulkan", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	f := os.NewFile(uintptr(fd), "memfd")
	t.Cleanup(func() { f.Close() })
	require.NoError(t, f.Truncate(size))
	return f
}

// wholeOf maps external memory of size bytes.
func wholeOf(t testing.TB, c sys.Caller, m sys.CUexternalMemory, size uint64) sys.CUdeviceptr {
	t.Helper()
	p := new(sys.CUdeviceptr)
	ok(t, c.CuExternalMemoryGetMappedBuffer(p, m, &sys.CUDA_EXTERNAL_MEMORY_BUFFER_DESC{Size: size}))
	return *p
}

// A size that is too large is found out by work, or by a buffer that lies beyond
// the memory.
func TestExternalSizeIsALie(t *testing.T) {
	c := inContext(t, 0)
	m, r := takeExternal(t, c, memfd(t, 8192), 1<<62)
	ok(t, r)
	p := wholeOf(t, c, m, 16384)
	ok(t, c.CuMemsetD8_v2(p, 1, 8192))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuMemsetD8_v2(p, 1, 8193))
	beyond := &sys.CUDA_EXTERNAL_MEMORY_BUFFER_DESC{Offset: 8192, Size: 1}
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuExternalMemoryGetMappedBuffer(new(sys.CUdeviceptr), m, beyond))
	ok(t, c.CuMemFree_v2(p))
	ok(t, c.CuDestroyExternalMemory(m))
}

// Memory that its maker cuts short makes work fail, and not the process.
func TestExternalMemoryIsCutShort(t *testing.T) {
	c := inContext(t, 0)
	f := memfd(t, 64<<10)
	m, r := takeExternal(t, c, f, 64<<10)
	ok(t, r)
	p := wholeOf(t, c, m, 64<<10)
	require.NoError(t, f.Truncate(0))
	require.NotEqual(t, sys.CUDA_SUCCESS, c.CuMemsetD8_v2(p, 1, 64<<10)|c.CuCtxSynchronize())
	driver.heal()
	ok(t, c.CuMemFree_v2(p))
	ok(t, c.CuDestroyExternalMemory(m))
}

// Anything that is no memory of this device is refused.
func TestExternalOfOthers(t *testing.T) {
	c := inContext(t, 0)
	sealed := memfd(t, 4096)
	readOnly, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", sealed.Fd()))
	require.NoError(t, err)
	defer readOnly.Close()
	for what, x := range map[string]struct {
		f    *os.File
		want sys.CUresult
	}{
		"memory of another device": {exported(t, create(t, 2*MiB, 1)), sys.CUDA_ERROR_INVALID_DEVICE},
		"an empty memfd":           {memfd(t, 0), sys.CUDA_ERROR_UNKNOWN},
		"a memfd to be read":       {readOnly, sys.CUDA_ERROR_UNKNOWN},
	} {
		_, r := takeExternal(t, c, x.f, 4096)
		require.Equal(t, x.want, r, "%s: %v", what, r)
	}
	for what, change := range map[string]func(*sys.CUDA_EXTERNAL_MEMORY_HANDLE_DESC){
		"size 0": func(d *sys.CUDA_EXTERNAL_MEMORY_HANDLE_DESC) { d.Size = 0 },
		"flags":  func(d *sys.CUDA_EXTERNAL_MEMORY_HANDLE_DESC) { d.Flags = 2 },
	} {
		desc := &sys.CUDA_EXTERNAL_MEMORY_HANDLE_DESC{Type: sys.CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, Size: 4096}
		*desc.HandleFd() = int32(sealed.Fd())
		change(desc)
		require.Equal(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuImportExternalMemory(new(sys.CUexternalMemory), desc), what)
	}
	require.NoError(t, sealed.Sync())
}

// A context takes its external memory and the buffers of it along; a handle that
// ended is a misuse.
func TestExternalMemoryEndsWithItsContext(t *testing.T) {
	c := initialised(t)
	ctx := new(sys.CUcontext)
	ok(t, c.CuCtxCreate_v2(ctx, 0, 0))
	in := c.With(*ctx)
	m, r := takeExternal(t, in, memfd(t, 4096), 4096)
	ok(t, r)
	p := wholeOf(t, in, m, 4096)
	want(t, sys.CUDA_ERROR_INVALID_VALUE, in.CuIpcGetMemHandle(new(sys.CUipcMemHandle), p))
	ok(t, c.CuCtxDestroy_v2(*ctx))
	want(t, sys.CUDA_ERROR_INVALID_HANDLE, inContext(t, 0).CuDestroyExternalMemory(m))
	misused(t, 1)
}
