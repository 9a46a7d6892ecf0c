package conformance

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu/sys"
)

func TestD6_ImportedProperties(t *testing.T) {
	c := raw(t)
	own := created(t, unit)
	for _, x := range []struct {
		what  string
		h     sys.CUmemGenericAllocationHandle
		types sys.CUmemAllocationHandleType
	}{
		{"own", own, handleFD},
		{"imported", imported(t, exported(t, own)), 0},
	} {
		p := new(sys.CUmemAllocationProp)
		check(t, x.what, success, c.CuMemGetAllocationPropertiesFromHandle(p, x.h))
		check(t, x.what+": type", sys.CU_MEM_ALLOCATION_TYPE_PINNED, p.Type)
		check(t, x.what+": location", deviceLocation(0), p.Location)
		check(t, x.what+": handle types", uint32(x.types), uint32(p.RequestedHandleTypes))
		check(t, x.what+": flags", sys.CUmemAllocationProp_allocFlags{}, p.AllocFlags)
	}
}

// Importing, mapping and setting access need no context.
func TestD7_NoContextNeeded(t *testing.T) {
	c := withoutContext(t)
	h, size := new(sys.CUmemGenericAllocationHandle), uintptr(unit)
	check(t, "create", success, c.CuMemCreate(h, size, propOf(0), 0))
	fd, r := export(c, *h, handleFD, 0)
	check(t, "export", success, r)
	f := os.NewFile(uintptr(fd), "device memory")
	h2, p := new(sys.CUmemGenericAllocationHandle), new(sys.CUdeviceptr)
	check(t, "import", success, c.CuMemImportFromShareableHandle(h2, f.Fd(), handleFD))
	check(t, "close", nil, f.Close())
	check(t, "reserve", success, c.CuMemAddressReserve(p, size, 0, 0, 0))
	check(t, "map", success, c.CuMemMap(*p, size, 0, *h2, 0))
	check(t, "set access", success, c.CuMemSetAccess(*p, size, accessTo(0, readWrite), 1))
	check(t, "get access", success, c.CuMemGetAccess(new(uint64), &accessTo(0, 0).Location, *p))
	check(t, "unmap", success, c.CuMemUnmap(*p, size))
	check(t, "free", success, c.CuMemAddressFree(*p, size))
	check(t, "release", success, c.CuMemRelease(*h2))
	check(t, "release the first", success, c.CuMemRelease(*h))
}

//fault:rows 25
func TestD8_ImportOfForeignDescriptors(t *testing.T) {
	c := raw(t)
	for what, f := range foreign(t) {
		check(t, what, sys.CUDA_ERROR_UNKNOWN, c.CuMemImportFromShareableHandle(new(sys.CUmemGenericAllocationHandle), f.Fd(), handleFD))
		check(t, what+" stays open", nil, f.Close())
	}
	for _, x := range []struct {
		what string
		fd   uintptr
	}{{"-1", ^uintptr(0)}, {"-1 as an int", 0xffffffff}, {"-2", 0xfffffffe}, {"one that is not open", 900}} {
		check(t, x.what, sys.CUDA_ERROR_UNKNOWN, c.CuMemImportFromShareableHandle(new(sys.CUmemGenericAllocationHandle), x.fd, handleFD))
	}
	check(t, "descriptor 0", invalid, c.CuMemImportFromShareableHandle(new(sys.CUmemGenericAllocationHandle), 0, handleFD))
}

// foreign returns files of every kind that is no device memory.
func foreign(t testing.TB) map[string]*os.File {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	memfd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(memfd, unit+4*KiB))
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, make([]byte, 8*KiB), 0o600))
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	dir, err := os.Open(t.TempDir())
	require.NoError(t, err)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	require.NoError(t, err)
	return map[string]*os.File{
		"a pipe, reading": r, "a pipe, writing": w,
		"a socket": os.NewFile(uintptr(pair[0]), "socket"), "its peer": os.NewFile(uintptr(pair[1]), "socket"),
		"a memfd": os.NewFile(uintptr(memfd), "memfd"), "a file": file, "a directory": dir, "/dev/null": null,
	}
}

func TestC4_Export(t *testing.T) {
	c := raw(t)
	h := created(t, unit)
	ask := func(h sys.CUmemGenericAllocationHandle, kind sys.CUmemAllocationHandleType, flags uint64) sys.CUresult {
		return exportAndClose(c, h, kind, flags)
	}
	check(t, "as a descriptor", success, ask(h, handleFD, 0))
	check(t, "again", success, ask(h, handleFD, 0))
	check(t, "with flags", invalid, ask(h, handleFD, 1))
	check(t, "as nothing", invalid, ask(h, sys.CU_MEM_HANDLE_TYPE_NONE, 0))
	check(t, "as a Windows handle", invalid, ask(h, sys.CU_MEM_HANDLE_TYPE_WIN32, 0))
	check(t, "as two kinds at once", invalid, ask(h, handleFD|sys.CU_MEM_HANDLE_TYPE_WIN32, 0))
	check(t, "as a kind that does not exist", invalid, ask(h, 1<<20, 0))
	check(t, "as a fabric handle", invalid, exportFabric(c, h, sys.CU_MEM_HANDLE_TYPE_FABRIC))
	private := new(sys.CUmemGenericAllocationHandle)
	ok(t, c.CuMemCreate(private, unit, propWith(func(p *sys.CUmemAllocationProp) { p.RequestedHandleTypes = 0 }), 0))
	check(t, "memory that was not made for it", invalid, ask(*private, handleFD, 0))
	check(t, "the same as nothing", invalid, ask(*private, 0, 0))
	ok(t, c.CuMemRelease(*private))
	check(t, "imported memory", invalid, ask(imported(t, exported(t, h)), handleFD, 0))
}

// exportAndClose asks for an export of which only the result matters.
func exportAndClose(c sys.Caller, h sys.CUmemGenericAllocationHandle, kind sys.CUmemAllocationHandleType, flags uint64) sys.CUresult {
	fd, r := export(c, h, kind, flags)
	if r == success {
		unix.Close(fd)
	}
	return r
}

func TestC4_ExportedDescriptor(t *testing.T) {
	h := created(t, unit)
	a, b := exported(t, h), exported(t, h)
	check(t, "each export is another descriptor", true, a.Fd() != b.Fd())
	flags, err := unix.FcntlInt(a.Fd(), unix.F_GETFD, 0)
	require.NoError(t, err)
	check(t, "it is closed on exec", unix.FD_CLOEXEC, flags)
}

func TestC4_Import(t *testing.T) {
	c := raw(t)
	h := created(t, unit)
	f := exported(t, h)
	a, b := imported(t, f), imported(t, f)
	check(t, "each import has a handle of its own", true, a != b)
	check(t, "which is not the exporter's", true, a != h)
	ask := func(fd uintptr, kind sys.CUmemAllocationHandleType) sys.CUresult {
		h := new(sys.CUmemGenericAllocationHandle)
		r := c.CuMemImportFromShareableHandle(h, fd, kind)
		if r == success {
			ok(t, c.CuMemRelease(*h))
		}
		return r
	}
	check(t, "a descriptor with junk above its 32 bits", success, ask(f.Fd()|7<<32, handleFD))
	check(t, "as nothing", invalid, ask(f.Fd(), 0))
	check(t, "as a Windows handle", notSupported, ask(f.Fd(), sys.CU_MEM_HANDLE_TYPE_WIN32))
	check(t, "as an older Windows handle", notSupported, ask(f.Fd(), sys.CU_MEM_HANDLE_TYPE_WIN32_KMT))
	check(t, "as two kinds at once", invalid, ask(f.Fd(), handleFD|sys.CU_MEM_HANDLE_TYPE_WIN32))
	check(t, "as a kind that does not exist", invalid, ask(f.Fd(), 1<<20))
	dup, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	require.NoError(t, err)
	check(t, "a duplicate", success, ask(uintptr(dup), handleFD))
	require.NoError(t, unix.Close(dup))
}

func TestC5_RetainAllocationHandle(t *testing.T) {
	c := inContext(t)
	h := new(sys.CUmemGenericAllocationHandle)
	ok(t, c.CuMemCreate(h, unit, propOf(0), 0))
	p := reserved(t, 2*unit)
	mapped(t, p, unit, *h)
	retain := func(p sys.CUdeviceptr) (sys.CUmemGenericAllocationHandle, sys.CUresult) {
		h := new(sys.CUmemGenericAllocationHandle)
		r := c.CuMemRetainAllocationHandle(h, uintptr(p))
		return *h, r
	}
	for what, p := range map[string]sys.CUdeviceptr{"a mapping": p, "the middle of it": p + 5} {
		again, r := retain(p)
		check(t, what, success, r)
		check(t, what+": the same handle", true, again == *h)
		ok(t, c.CuMemRelease(again))
	}
	_, r := retain(p + unit)
	check(t, "reserved, not mapped", invalid, r)
	_, r = retain(1 << 45)
	check(t, "no reservation", invalid, r)
	_, r = retain(0)
	check(t, "address 0", invalid, r)
	_, r = retain(plain(t, c, unit))
	check(t, "memory of cuMemAlloc", invalid, r)
	ok(t, c.CuMemRelease(*h))
	again, r := retain(p)
	check(t, "after the last release", success, r)
	check(t, "the handle is the old one", true, again == *h)
	ok(t, c.CuMemRelease(again))
}
