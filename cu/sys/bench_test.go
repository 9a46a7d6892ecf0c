package sys

import (
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"
)

// The C function of these benchmarks is libc's labs, so what they measure is
// the crossing. SyscallN is the dependency's own way across.

func benchmarkLibrary(b *testing.B) Caller {
	b.ReportAllocs()
	return libcLibrary(b, map[string]string{
		"cuCtxSynchronize": "labs", "cuEventRecord": "labs", "cuStreamWriteValue64_v2": "labs",
		"cuLaunchKernel": "labs", "cuMemAllocAsync": "labs", bindSymbol: "isdigit",
	}).Caller()
}

func labs(b *testing.B) uintptr {
	addr, err := libc(b)("labs")
	require.NoError(b, err)
	b.ReportAllocs()
	return addr
}

func BenchmarkCall0(b *testing.B) {
	for c := benchmarkLibrary(b); b.Loop(); {
		c.CuCtxSynchronize()
	}
}

func BenchmarkCall4(b *testing.B) {
	for c := benchmarkLibrary(b); b.Loop(); {
		c.CuStreamWriteValue64_v2(1, 2, 3, 4)
	}
}

func BenchmarkCall11(b *testing.B) {
	c, params := benchmarkLibrary(b), new(unsafe.Pointer)
	for b.Loop() {
		c.CuLaunchKernel(1, 2, 3, 4, 5, 6, 7, 8, 9, params, nil)
	}
}

func BenchmarkCall4WithContext(b *testing.B) {
	for c := benchmarkLibrary(b).With(bindable); b.Loop(); {
		c.CuStreamWriteValue64_v2(1, 2, 3, 4)
	}
}

func BenchmarkCall11WithContext(b *testing.B) {
	c, params := benchmarkLibrary(b).With(bindable), new(unsafe.Pointer)
	for b.Loop() {
		c.CuLaunchKernel(1, 2, 3, 4, 5, 6, 7, 8, 9, params, nil)
	}
}

func BenchmarkCallOutPointer(b *testing.B) {
	for c := benchmarkLibrary(b); b.Loop(); {
		var p CUdeviceptr
		c.CuMemAllocAsync(&p, 1, 2)
	}
}

func BenchmarkSyscallN0(b *testing.B) {
	for fn := labs(b); b.Loop(); {
		purego.SyscallN(fn)
	}
}

func BenchmarkSyscallN4(b *testing.B) {
	for fn := labs(b); b.Loop(); {
		purego.SyscallN(fn, 1, 2, 3, 4)
	}
}

func BenchmarkSyscallN11(b *testing.B) {
	for fn := labs(b); b.Loop(); {
		purego.SyscallN(fn, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
	}
}
