package conformance

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu/sys"
)

// importExternal gives the driver a duplicate of f. It returns whether the driver
// has closed that. The caller ends the memory.
func importExternal(t testing.TB, c sys.Caller, f *os.File, size uint64, flags uint32) (m sys.CUexternalMemory, r sys.CUresult, closed bool) {
	t.Helper()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 100) // nobody else has numbers like that
	require.NoError(t, err)
	desc := &sys.CUDA_EXTERNAL_MEMORY_HANDLE_DESC{Type: sys.CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, Size: size, Flags: flags}
	*desc.HandleFd() = int32(fd)
	out := new(sys.CUexternalMemory)
	r = c.CuImportExternalMemory(out, desc)
	return *out, r, unix.Close(fd) == unix.EBADF
}

// mapExternal maps a range of external memory.
func mapExternal(c sys.Caller, m sys.CUexternalMemory, offset, size uint64) (sys.CUdeviceptr, sys.CUresult) {
	p := new(sys.CUdeviceptr)
	r := c.CuExternalMemoryGetMappedBuffer(p, m, &sys.CUDA_EXTERNAL_MEMORY_BUFFER_DESC{Offset: offset, Size: size})
	return *p, r
}

func TestC42_ImportExternal(t *testing.T) {
	c := inContext(t)
	f := exported(t, created(t, 2*unit))
	try := func(what string, f *os.File, size uint64, flags uint32) {
		t.Helper()
		m, r, closed := importExternal(t, c, f, size, flags)
		check(t, what, success, r)
		check(t, what+": the driver closes the descriptor", true, closed)
		check(t, what+": it ends", success, c.CuDestroyExternalMemory(m))
	}
	try("memory of cuMemCreate", f, 2*unit, 0)
	try("the same as dedicated memory", f, 2*unit, sys.CUDA_EXTERNAL_MEMORY_DEDICATED)
	try("with half its size", f, unit, 0)
	try("with twice its size", f, 4*unit, 0)
	for what, f := range foreign(t) {
		m, r, closed := importExternal(t, c, f, unit, 0)
		if what == "a memfd" {
			differs(t, "external-memfd", "a memfd", varies, success, r)
		} else {
			check(t, what, sys.CUDA_ERROR_UNKNOWN, r)
			check(t, what+": the driver closes the descriptor", true, closed)
		}
		require.NoError(t, f.Close())
		if r == success {
			ok(t, c.CuDestroyExternalMemory(m))
		}
	}
}

func TestC42_MappedBuffers(t *testing.T) {
	c := inContext(t)
	p, h := buffer(t, 2*unit)
	ok(t, c.CuMemsetD8_v2(p, 5, 2*unit))
	ok(t, c.CuMemsetD8_v2(p+unit+4096, 6, 4096))
	m, r, _ := importExternal(t, c, exported(t, h), 2*unit, 0)
	ok(t, r)
	whole, r := mapExternal(c, m, 0, 2*unit)
	check(t, "the whole", success, r)
	part, r := mapExternal(c, m, unit+4096, 4096)
	check(t, "a part of it", success, r)
	check(t, "end the memory", success, c.CuDestroyExternalMemory(m))
	check(t, "the whole is there", 5, byteAt(c, whole))
	check(t, "the part, too", 6, byteAt(c, part))
	ok(t, c.CuMemsetD8_v2(part, 7, 1))
	check(t, "a write shows in the whole", 7, byteAt(c, whole+unit+4096))
	check(t, "and in the memory itself", 7, byteAt(c, p+unit+4096))
	check(t, "free the whole", success, c.CuMemFree_v2(whole))
	check(t, "free the part", success, c.CuMemFree_v2(part))
	check(t, "the memory itself stays", 7, byteAt(c, p+unit+4096))
}

// The descriptor is the caller's after a call that makes no sense.
func TestC42_ImportNonsense(t *testing.T) {
	c := inContext(t)
	f := exported(t, created(t, 2*unit))
	for _, x := range []struct {
		what string
		desc sys.CUDA_EXTERNAL_MEMORY_HANDLE_DESC
		want sys.CUresult
	}{
		{"no size", sys.CUDA_EXTERNAL_MEMORY_HANDLE_DESC{Type: sys.CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD}, invalid},
		{"an unknown flag", sys.CUDA_EXTERNAL_MEMORY_HANDLE_DESC{Type: sys.CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, Size: unit, Flags: 0x80}, invalid},
		{"a type of Windows", sys.CUDA_EXTERNAL_MEMORY_HANDLE_DESC{Type: sys.CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_WIN32, Size: unit}, sys.CUDA_ERROR_NOT_SUPPORTED},
		{"an unknown type", sys.CUDA_EXTERNAL_MEMORY_HANDLE_DESC{Type: 99, Size: unit}, invalid},
	} {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 100)
		require.NoError(t, err)
		*x.desc.HandleFd() = int32(fd)
		check(t, x.what, x.want, c.CuImportExternalMemory(new(sys.CUexternalMemory), &x.desc))
		check(t, x.what+": the descriptor is open", nil, unix.Close(fd))
	}
}

// Dedicated memory is mapped from its beginning.
func TestC42_MapRanges(t *testing.T) {
	c := inContext(t)
	f := exported(t, created(t, 2*unit))
	for _, x := range []struct {
		what         string
		flags        uint32
		offset, size uint64
		want         sys.CUresult
	}{
		{"a part at its end", 0, unit, unit, success},
		{"at no boundary", 0, 1, 7, success},
		{"nothing", 0, 0, 0, invalid},
		{"more than there is", 0, 0, 4 * unit, invalid},
		{"more than there is behind an offset", 0, unit, 2 * unit, invalid},
		{"all of dedicated memory", sys.CUDA_EXTERNAL_MEMORY_DEDICATED, 0, 2 * unit, success},
		{"the beginning of dedicated memory", sys.CUDA_EXTERNAL_MEMORY_DEDICATED, 0, unit, success},
		{"the end of dedicated memory", sys.CUDA_EXTERNAL_MEMORY_DEDICATED, unit, unit, invalid},
	} {
		m, r, _ := importExternal(t, c, f, 2*unit, x.flags)
		ok(t, r)
		p, r := mapExternal(c, m, x.offset, x.size)
		check(t, x.what, x.want, r)
		if r == success {
			ok(t, c.CuMemFree_v2(p))
		}
		ok(t, c.CuDestroyExternalMemory(m))
	}
}

// It waits for all work of its context, as that of memory of cuMemAlloc (C35), and for that of no other.
var freeExternal = alone("free a buffer of external memory",
	row{what: "wait in another context, free the buffer", want: story(success, success), ask: func(t testing.TB) any {
		c := inContext(t)
		other := createdContext(t, 0, 0)
		word, _ := buffer(t, unit)
		m, r, _ := importExternal(t, c, exported(t, created(t, unit)), unit, 0)
		ok(t, r)
		p, r := mapExternal(c, m, 0, unit)
		ok(t, r)
		return story(waitValue(other, stream(t, other), word, 1), within(hanging, func() sys.CUresult { return c.CuMemFree_v2(p) }))
	}},
	row{what: "wait for a word elsewhere, free the buffer", want: story(success, hangs), ask: func(t testing.TB) any {
		c := inContext(t)
		word, _ := buffer(t, unit)
		m, r, _ := importExternal(t, c, exported(t, created(t, unit)), unit, 0)
		ok(t, r)
		p, r := mapExternal(c, m, 0, unit)
		ok(t, r)
		return story(waitValue(c, stream(t, c), word, 1), within(hanging, func() sys.CUresult { return c.CuMemFree_v2(p) }))
	}})

func TestC42_FreeWaits(t *testing.T) { freeExternal.check(t) }
