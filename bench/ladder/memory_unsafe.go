package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/sys"
)

const granularity = 2 << 20

// keepThread locks this goroutine to its thread, where ctx is current from now on.
func keepThread(ctx *cu.Context) error {
	runtime.LockOSThread()
	return check("cuCtxSetCurrent", ctx.Device().Driver().Caller().CuCtxSetCurrent(ctx.Handle()))
}

// synchronize is cuCtxSynchronize, as C calls it.
func synchronize(ctx *cu.Context) error {
	return check("cuCtxSynchronize", ctx.Caller().CuCtxSynchronize())
}

func check(op string, r sys.CUresult) error {
	if r == sys.CUDA_SUCCESS {
		return nil
	}
	return fmt.Errorf("%s: %s", op, r)
}

// raw is memory that is made of driver calls, which are those of c/handoff.c.
type raw struct {
	call   sys.Caller
	size   uint64
	ptr    sys.CUdeviceptr
	handle sys.CUmemGenericAllocationHandle
	mapped bool
	fd     *os.File   // exported; the memory's
	came   descriptor // imported; the memory's
}

func (s *side) newRaw(size uint64) *raw {
	m := &raw{call: s.ctx.Caller(), size: size, came: none}
	if s.own(s.lock) == "yes" && s.own(s.bind) == "no" {
		m.call = s.dev.Driver().Caller()
	}
	return m
}

func location() sys.CUmemLocation {
	return sys.CUmemLocation{Type: sys.CU_MEM_LOCATION_TYPE_DEVICE, Id: 0}
}

func (s *side) makeRaw(size uint64, st *steps) (*raw, error) {
	m := s.newRaw(size)
	prop := &sys.CUmemAllocationProp{Type: sys.CU_MEM_ALLOCATION_TYPE_PINNED,
		RequestedHandleTypes: sys.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, Location: location()}
	from := rival.Now()
	if err := check("cuMemCreate", m.call.CuMemCreate(&m.handle, uintptr(size), prop, 0)); err != nil {
		return nil, err
	}
	st.took("create", from)
	return m, m.mapAll(cu.ReadWrite, st)
}

func (s *side) importRaw(size uint64, came descriptor, access cu.Access, st *steps) (*raw, error) {
	m := s.newRaw(size)
	m.came = came
	from := rival.Now()
	err := check("cuMemImportFromShareableHandle",
		m.call.CuMemImportFromShareableHandle(&m.handle, came.fd(), sys.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
	if err == nil && s.properties {
		prop := new(sys.CUmemAllocationProp)
		err = check("cuMemGetAllocationPropertiesFromHandle", m.call.CuMemGetAllocationPropertiesFromHandle(prop, m.handle))
	}
	if err != nil {
		return nil, errors.Join(err, came.close())
	}
	st.took("import", from)
	return m, m.mapAll(access, st)
}

func (m *raw) mapAll(access cu.Access, st *steps) error {
	from := rival.Now()
	if err := check("cuMemAddressReserve", m.call.CuMemAddressReserve(&m.ptr, uintptr(m.size), 0, 0, 0)); err != nil {
		return err
	}
	st.took("reserve", from)
	from = rival.Now()
	if err := check("cuMemMap", m.call.CuMemMap(m.ptr, uintptr(m.size), 0, m.handle, 0)); err != nil {
		return err
	}
	m.mapped = true
	st.took("map", from)
	desc := &sys.CUmemAccessDesc{Location: location(), Flags: sys.CUmemAccess_flags(access)}
	from = rival.Now()
	if err := check("cuMemSetAccess", m.call.CuMemSetAccess(m.ptr, uintptr(m.size), desc, 1)); err != nil {
		return err
	}
	st.took("access", from)
	return nil
}

func (m *raw) export() error {
	fd := new(int32)
	err := check("cuMemExportToShareableHandle",
		m.call.CuMemExportToShareableHandle(unsafe.Pointer(fd), m.handle, sys.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0))
	if err == nil {
		m.fd = os.NewFile(uintptr(*fd), "memory")
	}
	return err
}

func (m *raw) file() *os.File   { return m.fd }
func (m *raw) at() cu.DevicePtr { return cu.DevicePtr(m.ptr) }

func (m *raw) close() (err error) {
	if m.mapped {
		err = check("cuMemUnmap", m.call.CuMemUnmap(m.ptr, uintptr(m.size)))
	}
	if m.ptr != 0 {
		err = errors.Join(err, check("cuMemAddressFree", m.call.CuMemAddressFree(m.ptr, uintptr(m.size))))
	}
	err = errors.Join(err, check("cuMemRelease", m.call.CuMemRelease(m.handle)))
	if m.fd != nil {
		err = errors.Join(err, m.fd.Close())
	}
	return errors.Join(err, m.came.close())
}
