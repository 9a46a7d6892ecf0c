package soft

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/soft/internal/ptx"
	"github.com/gpufd/gpufd/cu/sys"
)

// Work that finds its memory gone when its turn comes says which memory that was.
func TestFaultOfMemoryThatIsGone(t *testing.T) { // D13, D20b, C40
	host := hostMemory(t, inContext(t, 0), 64)
	for name, tc := range map[string]struct {
		queue func(t *testing.T, c sys.Caller, s sys.CUstream, p, other sys.CUdeviceptr) sys.CUresult
		want  sys.CUresult
		say   string // with the addresses of both
	}{
		"write": {func(t *testing.T, c sys.Caller, s sys.CUstream, p, _ sys.CUdeviceptr) sys.CUresult {
			return c.CuStreamWriteValue64_v2(s, p+128, 7, 0)
		}, sys.CUDA_ERROR_LAUNCH_FAILED, "soft: a stream's write of 7 in the 8 bytes at ADDRESS: the 2097152 bytes at BASE were unmapped before"},
		"wait": {func(t *testing.T, c sys.Caller, s sys.CUstream, p, _ sys.CUdeviceptr) sys.CUresult {
			return c.CuStreamWaitValue32_v2(s, p+128, 9, 0)
		}, sys.CUDA_ERROR_LAUNCH_FAILED, "soft: a stream's wait for 9 in the 4 bytes at ADDRESS: the 2097152 bytes at BASE were unmapped before"},
		"copy from": {func(t *testing.T, c sys.Caller, s sys.CUstream, p, other sys.CUdeviceptr) sys.CUresult {
			return c.CuMemcpyDtoDAsync_v2(other, p+128, 64, s)
		}, sys.CUDA_ERROR_ILLEGAL_ADDRESS, "soft: a copy of 64 bytes from ADDRESS to OTHER: at ADDRESS, the 2097152 bytes at BASE were unmapped before"},
		"copy to": {func(t *testing.T, c sys.Caller, s sys.CUstream, p, other sys.CUdeviceptr) sys.CUresult {
			return c.CuMemcpyDtoDAsync_v2(p+128, other, 64, s)
		}, sys.CUDA_ERROR_ILLEGAL_ADDRESS, "soft: a copy of 64 bytes from OTHER to ADDRESS: at ADDRESS, the 2097152 bytes at BASE were unmapped before"},
		"copy to the host": {func(t *testing.T, c sys.Caller, s sys.CUstream, p, _ sys.CUdeviceptr) sys.CUresult {
			return c.CuMemcpyDtoHAsync_v2(at(host), p+128, 64, s)
		}, sys.CUDA_ERROR_LAUNCH_FAILED, "soft: a copy of 64 bytes from ADDRESS to HOST: at ADDRESS, the 2097152 bytes at BASE were unmapped before"},
		"fill": {func(t *testing.T, c sys.Caller, s sys.CUstream, p, _ sys.CUdeviceptr) sys.CUresult {
			return c.CuMemsetD8Async(p+128, 1, 64, s)
		}, sys.CUDA_ERROR_ILLEGAL_ADDRESS, "soft: a fill of 64 bytes at ADDRESS: at ADDRESS, the 2097152 bytes at BASE were unmapped before"},
		"kernel": {func(t *testing.T, c sys.Caller, s sys.CUstream, p, _ sys.CUdeviceptr) sys.CUresult {
			return c.CuLaunchKernel(functionOf(t, c, loaded(t, c, probes), "store"), 1, 1, 1, 1, 1, 1, 0, s, arguments(uint64(p)+128, uint32(1)).list(), nil)
		}, sys.CUDA_ERROR_ILLEGAL_ADDRESS, "ptx: kernel store, line 12, block [0 0 0], thread [0 0 0]: illegal address ADDRESS: the 2097152 bytes at BASE were unmapped before"},
	} {
		t.Run(name, func(t *testing.T) {
			c := inContext(t, 0)
			s, other := newStream(t, c, nonBlocking), linear(t, c, 64)
			t.Cleanup(driver.heal)
			p, free := looseBuffer(t, 2*MiB)
			open := block(t, c, s)
			ok(t, tc.queue(t, c, s, p, other))
			free()
			open()
			want(t, tc.want, c.CuStreamSynchronize(s))
			driver.heal()
			say := strings.NewReplacer("BASE", inHex(p), "ADDRESS", inHex(p+128), "OTHER", inHex(other), "HOST", inHex(addr(host))).Replace(tc.say)
			require.EqualError(t, LastFault(), say)
		})
	}
}

func inHex(p sys.CUdeviceptr) string { return fmt.Sprintf("%#x", uint64(p)) }

// A fault names the address that the kernel could not touch, and what is there.
func TestFaultSaysWhatIsThere(t *testing.T) {
	c := inContext(t, 0)
	other := inContext(t, 1)
	t.Cleanup(driver.heal)
	store := functionOf(t, c, loaded(t, c, probes), "store")
	p := reserved(t, 6*MiB)
	middle := p + 2*MiB
	mapped(t, middle, 2*MiB, create(t, 2*MiB, 0))
	ok(t, caller.CuMemSetAccess(middle, 2*MiB, accessTo(0, readOnly), 1))
	foreign := linear(t, other, 4096)
	shut, _ := buffer(t, 2*MiB, 0)
	ok(t, caller.CuMemSetAccess(shut, 2*MiB, accessTo(0, 0), 1))
	driver.mu.Lock()
	driver.space.former = nil // of earlier tests, at the same addresses maybe
	driver.mu.Unlock()
	freed := new(sys.CUdeviceptr)
	ok(t, c.CuMemAlloc_v2(freed, 4096))
	ok(t, c.CuMemFree_v2(*freed))
	for name, tc := range map[string]struct {
		at  sys.CUdeviceptr
		say string
	}{
		"before":       {middle - 16, "nothing is mapped there, 16 bytes before the 2097152 bytes at " + inHex(middle)},
		"behind":       {middle + 2*MiB + 8, "nothing is mapped there, 8 bytes behind the end of the 2097152 bytes at " + inHex(middle)},
		"read-only":    {middle, "2097152 bytes are mapped at " + inHex(middle) + ", which device 0 may only read"},
		"no rights":    {shut, "2097152 bytes are mapped at " + inHex(shut) + ", which device 0 may not touch"},
		"peer":         {foreign, "4096 bytes are mapped at " + inHex(foreign) + ", which are another device's, without peer access for device 0"},
		"freed":        {*freed, "the 4096 bytes at " + inHex(*freed) + " were freed before"},
		"null, nearly": {8, " bytes before the "},
	} {
		t.Run(name, func(t *testing.T) {
			ok(t, c.CuLaunchKernel(store, 1, 1, 1, 1, 1, 1, 0, 0, arguments(uint64(tc.at), uint32(1)).list(), nil))
			want(t, sys.CUDA_ERROR_ILLEGAL_ADDRESS, c.CuCtxSynchronize())
			driver.heal()
			require.ErrorContains(t, LastFault(), tc.say)
			var fault *ptx.Fault
			require.True(t, errors.As(LastFault(), &fault))
			require.EqualValues(t, tc.at, fault.Address)
		})
	}
}

// A file that was cut short is told from memory that is gone.
func TestFaultOfACutFile(t *testing.T) {
	c := inContext(t, 0)
	t.Cleanup(driver.heal)
	p, h := buffer(t, 2*MiB, 0)
	require.NoError(t, exported(t, h).Truncate(0))
	ok(t, c.CuStreamWaitValue32_v2(0, p, 1, 0))
	want(t, sys.CUDA_ERROR_LAUNCH_FAILED, c.CuCtxSynchronize())
	require.ErrorContains(t, LastFault(), "of a file that somebody has cut short")
	driver.heal()
	ok(t, c.CuMemsetD8Async(p, 1, 64, 0))
	want(t, sys.CUDA_ERROR_ILLEGAL_ADDRESS, c.CuCtxSynchronize())
	require.ErrorContains(t, LastFault(), "was cut short by somebody")
	driver.heal()
}

// Pieces of one reservation that end one after the other, in either direction, are one
// range, and only the latest ranges are remembered.
func TestFormerMemory(t *testing.T) {
	a, b := &reservation{base: 0x10000}, &reservation{base: 0x14000}
	var s space
	for _, base := range []uintptr{0x12000, 0x11000, 0x13000} {
		s.remember(a.base, base, 0x1000, "unmapped")
	}
	s.remember(b.base, 0x14000, 0x1000, "unmapped")
	s.remember(b.base, 0x15000, 0x1000, "freed")
	require.Equal(t, []former{
		{0x11000, 0x3000, 0x10000, "unmapped"}, {0x14000, 0x1000, 0x14000, "unmapped"}, {0x15000, 0x1000, 0x14000, "freed"},
	}, s.former)
	require.Nil(t, s.gone(0x10fff))
	require.Equal(t, &s.former[0], s.gone(0x13fff))
	require.Equal(t, &s.former[2], s.gone(0x15000))
	s.remember(a.base, 0x12000, 0x800, "freed")
	require.Equal(t, &s.former[3], s.gone(0x12000), "the latest")
	for i := range uintptr(maxFormer) {
		s.remember(b.base, 0x100000+i*0x2000, 0x1000, "unmapped")
	}
	require.Len(t, s.former, maxFormer)
	require.Nil(t, s.gone(0x12000))
	require.NotNil(t, s.gone(0x100000))
}
