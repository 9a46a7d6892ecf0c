package sys

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// traceLine makes a call to a driver that answers r and returns the line that
// Trace wrote, with the time, if it looks like one, cut to <T>.
func traceLine(r CUresult, call func(c Caller)) string {
	l := library(nil) // nothing resolves
	var out bytes.Buffer
	trace := Trace(&out)
	l.SetHook(func(call Call, next func() CUresult) CUresult {
		return trace(call, func() CUresult {
			if r == SymbolMissing {
				return next()
			}
			return r
		})
	})
	call(l.Caller())
	return anyTime.ReplaceAllString(out.String(), "<T>")
}

var anyTime = regexp.MustCompile(`<\d+\.\d+[µm]?s>`)

func TestTraceFormat(t *testing.T) {
	tests := map[string]struct {
		result CUresult
		call   func(c Caller)
		want   string
	}{
		"as documented": {
			CUDA_SUCCESS,
			func(c Caller) { c.CuMemMap(0x7f2c00000000, 2097152, 0, 0x55d0c8, 0) },
			"cuMemMap(0x7f2c00000000, 2097152, 0, 0x55d0c8, 0) = CUDA_SUCCESS <T>",
		},
		"no arguments": {
			CUDA_ERROR_LAUNCH_FAILED,
			func(c Caller) { c.CuCtxSynchronize() },
			"cuCtxSynchronize() = CUDA_ERROR_LAUNCH_FAILED <T>",
		},
		"an enum, a negative number and a null pointer": {
			CUDA_ERROR_INVALID_DEVICE,
			func(c Caller) { c.CuDeviceGetAttribute(nil, CU_DEVICE_ATTRIBUTE_WARP_SIZE, -1) },
			"cuDeviceGetAttribute(0, CU_DEVICE_ATTRIBUTE_WARP_SIZE, -1) = CUDA_ERROR_INVALID_DEVICE <T>",
		},
		"an enum without a name": {
			CUDA_SUCCESS,
			func(c Caller) { c.CuFuncSetCacheConfig(0xf, 77) },
			"cuFuncSetCacheConfig(0xf, CUfunc_cache(77)) = CUDA_SUCCESS <T>",
		},
		"a string": {
			CUDA_ERROR_FILE_NOT_FOUND,
			func(c Caller) { c.CuModuleLoad(nil, CString("a \"b\"\n.ptx")) },
			`cuModuleLoad(0, "a \"b\"\n.ptx") = CUDA_ERROR_FILE_NOT_FOUND <T>`,
		},
		"no string": {
			CUDA_ERROR_INVALID_VALUE,
			func(c Caller) { c.CuModuleLoad(nil, nil) },
			"cuModuleLoad(0, 0) = CUDA_ERROR_INVALID_VALUE <T>",
		},
		"a long string": {
			CUDA_SUCCESS,
			func(c Caller) { c.CuModuleLoad(nil, CString(strings.Repeat("x", 1000))) },
			`cuModuleLoad(0, "` + strings.Repeat("x", maxTracedString) + `"…) = CUDA_SUCCESS <T>`,
		},
		"a float": {
			CUDA_SUCCESS,
			func(c Caller) { c.CuTexRefSetMipmapLevelClamp(0x7e, 0.5, -3) },
			"cuTexRefSetMipmapLevelClamp(0x7e, 0.5, -3) = CUDA_SUCCESS <T>",
		},
		"structs by value": {
			CUDA_ERROR_MAP_FAILED,
			func(c Caller) { c.CuIpcOpenMemHandle_v2(nil, CUipcMemHandle{}, 1) },
			"cuIpcOpenMemHandle_v2(0, {64 bytes}, 1) = CUDA_ERROR_MAP_FAILED <T>",
		},
		"a small struct by value": {
			CUDA_SUCCESS,
			func(c Caller) { c.CuMemPrefetchAsync_v2(0x10, 4096, CUmemLocation{}, 0, 0x5) },
			"cuMemPrefetchAsync_v2(0x10, 4096, {8 bytes}, 0, 0x5) = CUDA_SUCCESS <T>",
		},
		"a file descriptor": {
			CUDA_ERROR_UNKNOWN,
			func(c Caller) { c.CuMemImportFromShareableHandle(nil, 7, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) },
			"cuMemImportFromShareableHandle(0, 0x7, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) = CUDA_ERROR_UNKNOWN <T>",
		},
		"a result without a name": {
			4242,
			func(c Caller) { c.CuInit(0) },
			"cuInit(0) = CUresult(4242) <T>",
		},
		"a missing symbol": {
			SymbolMissing,
			func(c Caller) { c.CuMemMap(1, 2, 0, 3, 0) },
			"cuMemMap(0x1, 2, 0, 0x3, 0) = symbol missing <T>",
		},
		"a bind that is missing": {
			bindFailed | SymbolMissing,
			func(c Caller) { c.With(1).CuStreamQuery(2) },
			"cuStreamQuery(0x2) = not called: cuCtxSetCurrent symbol missing <T>",
		},
		"a bind that failed": {
			bindFailed | CUDA_ERROR_INVALID_CONTEXT,
			func(c Caller) { c.With(1).CuStreamQuery(2) },
			"cuStreamQuery(0x2) = not called: cuCtxSetCurrent CUDA_ERROR_INVALID_CONTEXT <T>",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tt.want+"\n", traceLine(tt.result, tt.call))
		})
	}
}

func TestTraceMakesTheCall(t *testing.T) {
	var out bytes.Buffer
	l, calls := hooked(t)
	l.SetHook(Trace(&out))
	require.Zero(t, l.Caller().With(1).CuMemCreate(nil, 1, nil, 0))
	require.Equal(t, 1, *calls)
	require.Regexp(t, `^cuMemCreate\(0, 1, 0, 0\) = CUDA_SUCCESS <.+s>\n$`, out.String())
}

func TestTraceKeepsLinesWhole(t *testing.T) {
	var out bytes.Buffer
	l := libcLibrary(t, map[string]string{"cuStreamQuery": "labs"})
	l.SetHook(Trace(&out))
	inParallel(t, goroutines, func(i int) { l.Caller().CuStreamQuery(CUstream(1000 + i)) })

	lines := strings.SplitAfter(strings.TrimSuffix(out.String(), "\n"), "\n")
	require.Len(t, lines, goroutines)
	for i := 1; i <= goroutines; i++ {
		require.Contains(t, out.String(), fmt.Sprintf("cuStreamQuery(%#x) = CUresult(%d) <", 1000+i, 1000+i))
	}
}

func TestTraceTimes(t *testing.T) {
	tests := map[time.Duration]string{
		0:                                        "0.0µs",
		2140 * time.Nanosecond:                   "2.1µs",
		999 * time.Microsecond:                   "999.0µs",
		1234567 * time.Nanosecond:                "1.235ms",
		2*time.Second + 345678*time.Microsecond:  "2.345678s",
		50*time.Millisecond + 49*time.Nanosecond: "50ms",
	}
	for d, want := range tests {
		require.Equal(t, want, micro(d))
	}
}
