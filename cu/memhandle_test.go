package cu_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
)

// D4 of docs/driver-facts.md: the driver dies of a handle that is given back twice; invariant 5.
func TestMemHandleIsReleasedOnce(t *testing.T) {
	s, drv, dev := spied(t)
	g := granularity(t, dev)
	m := ok(dev.CreateMemory(g, cu.HandleFD))(t)
	require.Equal(t, g, m.Size())
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { require.NoError(t, m.Close()) })
	}
	wg.Wait()
	require.NoError(t, m.Close())
	require.Equal(t, 1, s.count("cuMemRelease"))
	require.ErrorIs(t, drv.Map(0x10000, g, 0, nil), cu.ErrClosed)
}

// FAULTS 15, invariant 3: a lost handle gives its memory back.
func TestLostMemHandleIsReleased(t *testing.T) {
	cutest.Alone(t, "it counts the device's memory")
	s, _, dev, ctx := spiedContext(t)
	g := granularity(t, dev)
	free := freeMemory(t, ctx)
	func() {
		require.NoError(t, errOf(dev.CreateMemory(g, cu.HandleFD)))
	}()
	eventuallyCollected(t, func() bool {
		now, _, err := ctx.MemInfo()
		return err == nil && now == free && s.count("cuMemRelease") == 1
	})
}

// D6, D7: an imported handle is the same memory, on the same device, and needs
// no context. The descriptor stays the caller's.
func TestImportedMemoryIsTheSame(t *testing.T) {
	drv, dev, ctx := driverContext(t)
	g := granularity(t, dev)
	own := ok(dev.CreateMemory(g, cu.HandleFD))(t)
	fd := ok(own.Export())(t)
	imported := ok(drv.ImportMemory(fd, g))(t)
	require.NoError(t, fd.Close(), "still open")

	require.Equal(t, ok(own.DeviceID())(t), ok(imported.DeviceID())(t))

	p := ok(drv.ReserveAddress(2*g, 0, 0))(t)
	require.NoError(t, drv.Map(p, g, 0, own))
	require.NoError(t, drv.Map(p.Add(g), g, 0, imported))
	require.NoError(t, drv.SetAccess(p, 2*g, cu.ReadWrite, dev))
	require.NoError(t, cu.Fill(ctx, p, uint32(0xfeedface), 1))
	got := make([]uint32, 1)
	require.NoError(t, cu.CopyToHost(ctx, got, p.Add(g)))
	require.EqualValues(t, 0xfeedface, got[0])
	require.Equal(t, cu.ReadWrite, ok(drv.AccessOf(p, dev))(t))

	require.NoError(t, own.Close()) // D12: legal while mapped
	require.NoError(t, cu.CopyToHost(ctx, got, p))
	require.NoError(t, drv.Unmap(p, 2*g))
	require.NoError(t, drv.FreeAddress(p, 2*g))
	require.NoError(t, imported.Close())
}

// FAULTS 25, D8: whatever a descriptor is that is no device memory, the error
// is ErrUnknown and the process lives.
func TestFault25_ImportOfForeignDescriptors(t *testing.T) {
	drv := cutest.Driver(t)
	for name, f := range foreignDescriptors(t) {
		require.ErrorIs(t, errOf(drv.ImportMemory(f, 2<<20)), cu.ErrUnknown, name)
		require.NoError(t, errOf(f.Stat()), "the descriptor stays the caller's")
		require.NoError(t, f.Close())
		require.ErrorIs(t, errOf(drv.ImportMemory(f, 2<<20)), os.ErrClosed, name)
	}
	require.ErrorIs(t, errOf(drv.ImportMemory(nil, 2<<20)), os.ErrInvalid)
}

// foreignDescriptors are files of every other kind, to be closed.
func foreignDescriptors(t *testing.T) map[string]*os.File {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	pair := ok(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	memfd := ok(unix.MemfdCreate("test", unix.MFD_CLOEXEC))(t)
	require.NoError(t, unix.Ftruncate(memfd, 2<<20+4096))
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, make([]byte, 8192), 0o600))
	file := ok(os.OpenFile(path, os.O_RDWR, 0))(t)
	dir := ok(os.Open(t.TempDir()))(t)
	null := ok(os.OpenFile(os.DevNull, os.O_RDWR, 0))(t)
	all := map[string]*os.File{
		"pipe, reading": r, "pipe, writing": w,
		"socket": os.NewFile(uintptr(pair[0]), "socket"), "its peer": os.NewFile(uintptr(pair[1]), "socket"),
		"memfd": os.NewFile(uintptr(memfd), "memfd"), "file": file, "directory": dir, "/dev/null": null,
	}
	if ctl, err := os.OpenFile("/dev/nvidiactl", os.O_RDWR, 0); err == nil {
		all["/dev/nvidiactl"] = ctl
	}
	return all
}

// FAULTS 34, D8: the driver takes descriptor 0 for none at all.
func TestFault34_ImportOfDescriptorZero(t *testing.T) { runChild(t, "descriptor zero") }

func childDescriptorZero() error {
	dev := get(childDevice())
	g, _, err := dev.Granularity(cu.HandleFD)
	must(err)
	own := get(dev.CreateMemory(g, cu.HandleFD))
	fd := get(own.Export())
	must(unix.Dup3(int(fd.Fd()), 0, 0))
	h := new(sys.CUmemGenericAllocationHandle)
	if r := dev.Driver().Caller().CuMemImportFromShareableHandle(h, 0, sys.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR); r != sys.CUDA_ERROR_INVALID_VALUE {
		return fmt.Errorf("the driver itself says %v", r)
	}
	zero := os.NewFile(0, "zero")
	imported := get(dev.Driver().ImportMemory(zero, g))
	return errors.Join(imported.Close(), zero.Close(), fd.Close(), own.Close())
}

// FAULTS 16: each export is a descriptor of its own, which no child inherits.
func TestExportedDescriptorsAreTheCallers(t *testing.T) {
	dev := cutest.Device(t)
	m := ok(dev.CreateMemory(granularity(t, dev), cu.HandleFD))(t)
	for _, export := range []func() (*os.File, error){m.Export, newPool(t, dev).Export} {
		a, b := ok(export())(t), ok(export())(t)
		require.NotEqual(t, a.Fd(), b.Fd())
		for _, f := range []*os.File{a, b} {
			require.NotZero(t, ok(unix.FcntlInt(f.Fd(), unix.F_GETFD, 0))(t)&unix.FD_CLOEXEC)
			require.NoError(t, f.Close())
		}
	}
	require.NoError(t, m.Close())
}

// A fabric handle takes an IMEX channel, which only trying tells: the attribute
// says yes all the same (D20). The error says what is missing, and nothing is
// left. Where there is a channel the handle is made.
func TestFault45_FabricWithoutIMEX(t *testing.T) {
	cutest.Alone(t, "it counts the device's memory")
	dev, ctx := deviceContext(t)
	free := freeMemory(t, ctx)
	for _, types := range []cu.HandleType{cu.HandleFabric, cu.HandleFD | cu.HandleFabric} {
		m, err := dev.CreateMemory(granularity(t, dev), types)
		if err == nil {
			require.NoError(t, m.Close())
			t.Skip("there is an IMEX channel here")
		}
		require.ErrorIs(t, err, cu.ErrNotPermitted)
		require.ErrorContains(t, err, "IMEX channel")
		require.Nil(t, m)
	}
	after := freeMemory(t, ctx)
	require.Equal(t, free, after)
}

// A handle that its owner closes is as any other, but nobody else closes it.
func TestUncollectedMemHandle(t *testing.T) {
	s, drv, dev := spied(t)
	g := granularity(t, dev)
	m := ok(dev.CreateMemory(g, cu.HandleFD))(t)
	f := ok(m.Export())(t)
	own := ok(drv.ImportUncollected(f, g))(t)
	require.Equal(t, g, own.Size())
	require.Equal(t, dev.Ordinal(), ok(own.DeviceID())(t))
	kept := own.Handle()
	require.NoError(t, m.Close())
	func() { // a lost handle of the other kind shows that cleanups have run
		require.NoError(t, errOf(drv.ImportMemory(f, g)))
	}()
	eventuallyCollected(t, func() bool { return s.count("cuMemRelease") == 2 })
	require.Equal(t, sys.CUDA_SUCCESS, drv.Caller().CuMemRelease(kept), "nobody has released it")
	require.NoError(t, f.Close())
	require.ErrorIs(t, errOf(drv.ImportUncollected(f, g)), os.ErrClosed)
}
