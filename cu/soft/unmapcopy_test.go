package soft

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/sys"
)

// A copy or fill that is under way when its memory is unmapped fails: with a host
// side otherwise than without.
func TestUnmapUnderTransfer(t *testing.T) { // C40
	const size = 24 * MiB
	for name, tc := range map[string]struct {
		begin func(c sys.Caller, s sys.CUstream, p, other sys.CUdeviceptr, host []byte) sys.CUresult
		want  sys.CUresult
	}{
		"to the host": {func(c sys.Caller, s sys.CUstream, p, _ sys.CUdeviceptr, host []byte) sys.CUresult {
			return c.CuMemcpyDtoHAsync_v2(at(host), p, size, s)
		}, sys.CUDA_ERROR_LAUNCH_FAILED},
		"from the host": {func(c sys.Caller, s sys.CUstream, p, _ sys.CUdeviceptr, host []byte) sys.CUresult {
			return c.CuMemcpyHtoDAsync_v2(p, at(host), size, s)
		}, sys.CUDA_ERROR_LAUNCH_FAILED},
		"to a device": {func(c sys.Caller, s sys.CUstream, p, other sys.CUdeviceptr, _ []byte) sys.CUresult {
			return c.CuMemcpyDtoDAsync_v2(other, p, size, s)
		}, sys.CUDA_ERROR_ILLEGAL_ADDRESS},
		"from a device": {func(c sys.Caller, s sys.CUstream, p, other sys.CUdeviceptr, _ []byte) sys.CUresult {
			return c.CuMemcpyDtoDAsync_v2(p, other, size, s)
		}, sys.CUDA_ERROR_ILLEGAL_ADDRESS},
		"fill": {func(c sys.Caller, s sys.CUstream, p, _ sys.CUdeviceptr, _ []byte) sys.CUresult {
			return c.CuMemsetD8Async(p, 3, size, s)
		}, sys.CUDA_ERROR_ILLEGAL_ADDRESS},
	} {
		t.Run(name, func(t *testing.T) {
			c := inContext(t, 0)
			t.Cleanup(driver.heal)
			s, host := newStream(t, c, nonBlocking), hostMemory(t, c, size)
			other, _ := buffer(t, size, 0)
			met := errors.New("each time the transfer was over before its memory went")
			for range 50 {
				p, free := looseBuffer(t, size)
				ok(t, tc.begin(c, s, p, other, host))
				until(t, "the transfer begins", func() bool { return begun(s, p) })
				free()
				r := c.CuStreamSynchronize(s)
				if r == sys.CUDA_SUCCESS {
					continue
				}
				want(t, tc.want, r)
				idle(t)
				driver.heal()
				require.ErrorContains(t, LastFault(), "the 25165824 bytes at "+inHex(p)+" were unmapped before")
				met = nil
				break
			}
			require.NoError(t, met)
		})
	}
}

// begun reports whether the work of a stream holds the memory at p, besides its handle
// and its mapping, or is over.
func begun(s sys.CUstream, p sys.CUdeviceptr) bool {
	driver.mu.Lock()
	defer driver.mu.Unlock()
	return !driver.streams[s].busy() || driver.space.mapping(uintptr(p)).phys.refs > 2
}

// The first failure is the one that contexts are lost to, and that is told.
func TestFirstFaultStays(t *testing.T) {
	inContext(t, 0)
	t.Cleanup(driver.heal)
	first := errors.New("the first")
	driver.mu.Lock()
	want(t, sys.CUDA_ERROR_LAUNCH_FAILED, driver.die(sys.CUDA_ERROR_LAUNCH_FAILED, first))
	want(t, sys.CUDA_ERROR_LAUNCH_FAILED, driver.die(sys.CUDA_ERROR_ILLEGAL_ADDRESS, errors.New("a later one")))
	driver.mu.Unlock()
	require.Equal(t, first, LastFault())
	driver.heal()
}
