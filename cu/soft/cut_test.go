package soft

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// cutKernels touch memory in each of the ways that a kernel has.
const cutKernels = `.version 7.4
.target sm_75
.address_size 64
.visible .entry load(.param .u64 p) {
	.reg .b64 %rd<2>; .reg .b32 %r<3>;
	ld.param.u64 %rd1, [p];
	ld.global.u32 %r1, [%rd1];
	st.global.u32 [%rd1], %r1;
	ret;
}
.visible .entry store(.param .u64 p) {
	.reg .b64 %rd<2>;
	ld.param.u64 %rd1, [p];
	st.global.u32 [%rd1], 7;
	ret;
}
.visible .entry vector(.param .u64 p) {
	.reg .b64 %rd<2>; .reg .b32 %r<5>;
	ld.param.u64 %rd1, [p];
	ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];
	st.global.u32 [%rd1], %r4;
	ret;
}
.visible .entry add(.param .u64 p) {
	.reg .b64 %rd<2>; .reg .b32 %r<2>;
	ld.param.u64 %rd1, [p];
	atom.global.add.u32 %r1, [%rd1], 1;
	ret;
}
.visible .entry reduce(.param .u64 p) {
	.reg .b64 %rd<2>;
	ld.param.u64 %rd1, [p];
	red.global.add.u64 [%rd1], 1;
	ret;
}
.visible .entry swap(.param .u64 p) {
	.reg .b64 %rd<3>;
	ld.param.u64 %rd1, [p];
	atom.global.cas.b64 %rd2, [%rd1], 0, 1;
	ret;
}
.visible .entry half(.param .u64 p) {
	.reg .b64 %rd<2>; .reg .b32 %r<2>;
	ld.param.u64 %rd1, [p];
	mov.u32 %r1, 1006648320;
	red.global.add.noftz.f16x2 [%rd1], %r1;
	ret;
}
.visible .entry volatile(.param .u64 p) {
	.reg .b64 %rd<2>; .reg .b16 %rs<2>;
	ld.param.u64 %rd1, [p];
	ld.volatile.global.u16 %rs1, [%rd1];
	st.volatile.global.u16 [%rd1], %rs1;
	ret;
}
`

// Whatever touches memory whose file somebody has cut off loses the context, as any bad
// access does, and not the process.
//
//fault:rows 77
func TestCutOffUnderWork(t *testing.T) { // invariant 2
	work := map[string]func(c sys.Caller, p, other sys.CUdeviceptr, host []byte) sys.CUresult{
		"copy in": func(c sys.Caller, p, _ sys.CUdeviceptr, host []byte) sys.CUresult {
			return c.CuMemcpyHtoD_v2(p, at(host), 64)
		},
		"copy out": func(c sys.Caller, p, _ sys.CUdeviceptr, host []byte) sys.CUresult {
			return c.CuMemcpyDtoH_v2(at(host), p, 64)
		},
		"copy in, later": func(c sys.Caller, p, _ sys.CUdeviceptr, host []byte) sys.CUresult {
			return c.CuMemcpyHtoDAsync_v2(p, at(host), 64, 0)
		},
		"copy across": func(c sys.Caller, p, other sys.CUdeviceptr, _ []byte) sys.CUresult {
			return c.CuMemcpyDtoD_v2(other, p, 64)
		},
		"set": func(c sys.Caller, p, _ sys.CUdeviceptr, _ []byte) sys.CUresult { return c.CuMemsetD32_v2(p, 1, 16) },
		"set rows": func(c sys.Caller, p, _ sys.CUdeviceptr, _ []byte) sys.CUresult {
			return c.CuMemsetD2D16_v2(p, 64, 1, 8, 4)
		},
	}
	for _, name := range []string{"load", "store", "vector", "add", "reduce", "swap", "half", "volatile"} {
		work["kernel: "+name] = func(c sys.Caller, p, _ sys.CUdeviceptr, _ []byte) sys.CUresult {
			mod := new(sys.CUmodule)
			ok(t, c.CuModuleLoadData(mod, text2c(cutKernels)))
			args := arguments(uint64(p))
			return c.CuLaunchKernel(functionOf(t, c, *mod, name), 2, 1, 1, 32, 1, 1, 0, 0, args.list(), nil)
		}
	}
	for name, touch := range work {
		t.Run(name, func(t *testing.T) {
			c := inContext(t, 0)
			p, h := buffer(t, 2*MiB, 0)
			other, _ := buffer(t, 2*MiB, 0)
			require.NoError(t, exported(t, h).Truncate(0))
			touch(c, p, other, make([]byte, 64))
			want(t, sys.CUDA_ERROR_ILLEGAL_ADDRESS, c.CuCtxSynchronize())
			ok(t, c.CuDevicePrimaryCtxReset_v2(0))
			driver.heal()
		})
	}
}

// A file of holes is no device memory: to read it would take memory of this machine. It
// is refused as anything is that the driver did not make (D8).
//
//fault:rows 76
func TestImportSparse(t *testing.T) { // invariant 2
	initialised(t)
	const size = 1 << 40
	d := driver.devices[0]
	for name, hole := range map[string]func(t *testing.T, fd int){
		"all of it": func(t *testing.T, fd int) { require.NoError(t, unix.Ftruncate(fd, size+trailerSize)) },
		"its middle": func(t *testing.T, fd int) {
			require.NoError(t, allocate(fd, MiB))
			require.NoError(t, unix.Ftruncate(fd, size+trailerSize))
		},
	} {
		t.Run(name, func(t *testing.T) {
			fd, err := unix.MemfdCreate("sparse", unix.MFD_CLOEXEC)
			require.NoError(t, err)
			defer unix.Close(fd)
			hole(t, fd)
			made := trailer{kind: kindGeneric, ordinal: d.ordinal, size: size, uuid: d.uuid}
			require.NoError(t, made.write(fd))
			var h sys.CUmemGenericAllocationHandle
			want(t, sys.CUDA_ERROR_UNKNOWN, caller.CuMemImportFromShareableHandle(&h, uintptr(fd), posixFD))
		})
	}
}

// An event whose file was cut off loses the context of who uses it.
//
//fault:rows 77
func TestCutOffEvent(t *testing.T) { // invariant 2
	for name, use := range map[string]func(sys.Caller, sys.CUevent) sys.CUresult{
		"record":      func(c sys.Caller, e sys.CUevent) sys.CUresult { return c.CuEventRecord(e, 0) },
		"wait":        func(c sys.Caller, e sys.CUevent) sys.CUresult { return c.CuStreamWaitEvent(0, e, 0) },
		"query":       func(c sys.Caller, e sys.CUevent) sys.CUresult { return c.CuEventQuery(e) },
		"synchronise": func(c sys.Caller, e sys.CUevent) sys.CUresult { return c.CuEventSynchronize(e) },
	} {
		t.Run(name, func(t *testing.T) {
			c := inContext(t, 0)
			e := new(sys.CUevent)
			ok(t, c.CuEventCreate(e, uint32(sys.CU_EVENT_DISABLE_TIMING|sys.CU_EVENT_INTERPROCESS)))
			driver.mu.Lock()
			file := filepath.Join(driver.store.dir, driver.events[*e].shared.name())
			driver.mu.Unlock()
			require.NoError(t, os.Truncate(file, 0))
			want(t, sys.CUDA_ERROR_ILLEGAL_ADDRESS, use(c, *e))
			want(t, sys.CUDA_ERROR_ILLEGAL_ADDRESS, c.CuCtxSynchronize())
			driver.heal()
			ok(t, c.CuEventDestroy_v2(*e))
		})
	}
}
