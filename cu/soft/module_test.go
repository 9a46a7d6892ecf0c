package soft

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// header is what PTX begins with.
const header = ".version 7.4\n.target sm_75\n.address_size 64\n"

// An image that is no module is refused by its kind.
func TestModuleRefused(t *testing.T) {
	c := inContext(t, 0)
	mod := new(sys.CUmodule)
	for text, r := range map[string]sys.CUresult{
		"":                                  sys.CUDA_ERROR_INVALID_IMAGE,
		"hello, this is no PTX":             sys.CUDA_ERROR_INVALID_IMAGE,
		".version 99.0\n.target sm_75\n":    sys.CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
		".version 9.1\n.target sm_75\n":     sys.CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
		".version 7.4\n.address_size 64\n":  sys.CUDA_ERROR_INVALID_PTX,
		".version 8.7\n.target sm_100\n":    sys.CUDA_ERROR_INVALID_PTX,
		header + ".entry f() { frob; }":     sys.CUDA_ERROR_INVALID_PTX,
		"\x7fELF\x02\x01\x01\x00":           sys.CUDA_ERROR_NO_BINARY_FOR_GPU,
		"// a comment\n" + header:           sys.CUDA_SUCCESS,
		".version 9.0\n.target sm_90a\n":    sys.CUDA_SUCCESS,
		header + ".global .b8 x[99999999];": sys.CUDA_ERROR_OUT_OF_MEMORY,
	} {
		*mod = 0
		want(t, r, c.CuModuleLoadData(mod, text2c(text)))
		if r == sys.CUDA_SUCCESS {
			ok(t, c.CuModuleUnload(*mod))
		}
	}
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuModuleLoadData(mod, nil))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuModuleLoadData(nil, text2c(header)))
}

// The driver of a CUDA version reads its PTX and older.
func TestPTXVersions(t *testing.T) {
	for version, latest := range map[int]string{11040: "7.4", 11080: "7.8", 12000: "8.0", 12050: "8.5", 12060: "8.5", 12080: "8.7", 12090: "8.8", 13000: "9.0"} {
		require.False(t, newerPTX(latest, version), version)
		require.True(t, newerPTX(latest[:2]+string(latest[2]+1), version), version)
	}
}

// The error log names the line, and says how long it is.
func TestModuleLogs(t *testing.T) {
	c := inContext(t, 0)
	for size, whole := range map[uint32]bool{2000: true, 20: false} {
		log := newJITLog(size)
		r := log.load(c, header+".entry f()\n{\n frobnicate.u32 %r1, 1;\n}")
		want(t, sys.CUDA_ERROR_INVALID_PTX, r)
		text, n := log.errors()
		require.True(t, strings.HasPrefix("ptxas application ptx input, line 6; error   : the instruction frobnicate.u32 is not supported\nptxas fatal   : Ptx assembly aborted due to errors", text), text)
		if whole {
			require.Len(t, text, int(n))
		} else {
			require.Len(t, text, 19)
			require.EqualValues(t, 20, n)
		}
	}
	log := newJITLog(100)
	log.ids[0] = 99
	want(t, sys.CUDA_ERROR_INVALID_VALUE, log.load(c, header))
}

// Fatbins hold PTX, which serves if it is not compressed.
func TestFatbins(t *testing.T) {
	c := inContext(t, 0)
	mod := new(sys.CUmodule)
	elf, text := fatEntry(2, "\x7fELF1234", 0), fatEntry(1, probes+"\x00", 0)
	for _, tc := range []struct {
		image []byte
		want  sys.CUresult
	}{
		{fatbin(elf, text), sys.CUDA_SUCCESS},
		{fatbin(elf), sys.CUDA_ERROR_NO_BINARY_FOR_GPU},
		{fatbin(fatEntry(1, "(compressed)", 500)), sys.CUDA_ERROR_NO_BINARY_FOR_GPU},
		{fatbin(fatEntry(1, "nonsense", 0)), sys.CUDA_ERROR_INVALID_PTX},
		{fatbin(text[:200]), sys.CUDA_ERROR_INVALID_IMAGE},
		{fatbin(), sys.CUDA_ERROR_NO_BINARY_FOR_GPU},
	} {
		want(t, tc.want, c.CuModuleLoadFatBinary(mod, at(tc.image)))
		name := filepath.Join(t.TempDir(), "image")
		require.NoError(t, os.WriteFile(name, tc.image, 0o600))
		if tc.want == sys.CUDA_SUCCESS {
			functionOf(t, c, *mod, "count")
			ok(t, c.CuModuleUnload(*mod))
		}
		want(t, tc.want, c.CuModuleLoad(mod, sys.CString(name)))
		if tc.want == sys.CUDA_SUCCESS {
			ok(t, c.CuModuleUnload(*mod))
		}
	}
}

// fatEntry is an entry of a fatbin.
func fatEntry(kind uint16, body string, decompressed uint64) []byte {
	b := make([]byte, 64)
	binary.LittleEndian.PutUint16(b, kind)
	binary.LittleEndian.PutUint32(b[4:], 64)
	binary.LittleEndian.PutUint64(b[8:], uint64(len(body)))
	binary.LittleEndian.PutUint64(b[56:], decompressed)
	return append(b, body...)
}

func fatbin(entries ...[]byte) []byte {
	b := make([]byte, 16)
	for _, e := range entries {
		b = append(b, e...)
	}
	binary.LittleEndian.PutUint32(b, fatMagic)
	binary.LittleEndian.PutUint16(b[4:], 1)
	binary.LittleEndian.PutUint16(b[6:], 16)
	binary.LittleEndian.PutUint64(b[8:], uint64(len(b)-16))
	return b
}

// Modules come from files, too.
func TestModuleFromFile(t *testing.T) {
	c := inContext(t, 0)
	mod := new(sys.CUmodule)
	ok(t, c.CuModuleLoad(mod, sys.CString("../../kernels/vector.ptx")))
	ok(t, c.CuModuleUnload(*mod))
	want(t, sys.CUDA_ERROR_FILE_NOT_FOUND, c.CuModuleLoad(mod, sys.CString("/nonexistent")))
	want(t, sys.CUDA_ERROR_OUT_OF_MEMORY, c.CuModuleLoad(mod, sys.CString(t.TempDir())))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuModuleLoad(mod, nil))
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	want(t, sys.CUDA_ERROR_INVALID_IMAGE, c.CuModuleLoad(mod, sys.CString(empty)))
	require.NoError(t, os.WriteFile(empty, []byte("\x50\xed\x55\xba\x01\x00\x10\x00\xff"), 0o600))
	want(t, sys.CUDA_ERROR_INVALID_IMAGE, c.CuModuleLoad(mod, sys.CString(empty)))
}

// A path that is no regular file, or too large a one, is neither waited for nor read for ever.
func TestModuleFromWhatIsNoFile(t *testing.T) {
	c := inContext(t, 0)
	dir := t.TempDir()
	pipe, huge := filepath.Join(dir, "pipe"), filepath.Join(dir, "huge")
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	require.NoError(t, os.WriteFile(huge, nil, 0o600))
	require.NoError(t, os.Truncate(huge, 1<<40)) // of holes
	lib := new(sys.CUlibrary)
	for _, name := range []string{pipe, huge, "/dev/zero", "/dev/null"} {
		want(t, sys.CUDA_ERROR_INVALID_IMAGE, c.CuModuleLoad(new(sys.CUmodule), sys.CString(name)))
		if c.Library().Has("cuLibraryLoadFromFile") {
			want(t, sys.CUDA_ERROR_INVALID_IMAGE, c.CuLibraryLoadFromFile(lib, sys.CString(name), nil, nil, 0, nil, nil, 0))
		}
	}
}

// A module tells what is in it.
func TestModuleContents(t *testing.T) {
	c := inContext(t, 0)
	mod := loaded(t, c, probes)
	f, n := new(sys.CUfunction), new(uint32)
	ok(t, c.CuModuleGetFunctionCount(n, mod))
	require.EqualValues(t, 7, *n)
	list := make([]sys.CUfunction, 3)
	ok(t, c.CuModuleEnumerateFunctions(&list[0], 3, mod))
	require.Equal(t, functionOf(t, c, mod, "store"), list[0])
	name, off, size := new(*byte), new(uintptr), new(uintptr)
	ok(t, c.CuFuncGetName(name, list[1]))
	require.Equal(t, "count", sys.GoString(*name, 99))
	ok(t, c.CuFuncGetParamInfo(list[0], 1, off, size))
	require.Equal(t, [2]uintptr{8, 4}, [2]uintptr{*off, *size})
	ok(t, c.CuFuncGetParamInfo(list[0], 0, off, nil))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuFuncGetParamInfo(list[0], 2, off, size))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuFuncGetParamInfo(list[0], 0, nil, size))
	of := new(sys.CUmodule)
	ok(t, c.CuFuncGetModule(of, list[0]))
	require.Equal(t, mod, *of)
	state, mode := new(sys.CUfunctionLoadingState), new(sys.CUmoduleLoadingMode)
	ok(t, c.CuFuncLoad(list[0]))
	ok(t, c.CuFuncIsLoaded(state, list[0]))
	require.Equal(t, sys.CU_FUNCTION_LOADING_STATE_LOADED, *state)
	ok(t, c.CuModuleGetLoadingMode(mode))
	require.Equal(t, sys.CU_MODULE_LAZY_LOADING, *mode)

	want(t, sys.CUDA_ERROR_NOT_FOUND, c.CuModuleGetFunction(f, mod, sys.CString("none")))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuModuleGetFunction(f, mod, sys.CString("")))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuModuleGetFunction(nil, mod, sys.CString("count")))
	want(t, sys.CUDA_ERROR_INVALID_HANDLE, c.CuModuleGetFunction(f, 0, sys.CString("count")))
	misused(t, 1)

	p := new(sys.CUdeviceptr)
	ok(t, c.CuModuleGetGlobal_v2(p, size, mod, sys.CString("three")))
	require.EqualValues(t, 4, *size)
	word := make([]byte, 4)
	ok(t, c.CuMemcpyDtoH_v2(at(word), *p, 4))
	require.EqualValues(t, 3, word[0])
	ok(t, c.CuModuleGetGlobal_v2(nil, size, mod, sys.CString("counter")))
	ok(t, c.CuModuleGetGlobal_v2(p, nil, mod, sys.CString("counter")))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuMemFree_v2(*p))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuModuleGetGlobal_v2(nil, nil, mod, sys.CString("counter")))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuModuleGetGlobal_v2(p, size, mod, sys.CString("store")))
	want(t, sys.CUDA_ERROR_NOT_FOUND, c.CuModuleGetGlobal_v2(p, size, mod, sys.CString("none")))
}

// Attributes of functions, and which of them can be set.
func TestFunctionAttributes(t *testing.T) {
	c := inContext(t, 0)
	mod := loaded(t, c, probes)
	v := new(int32)
	for name, most := range map[string]int32{"small": 32, "exact": 1024, "store": 1024} {
		ok(t, c.CuFuncGetAttribute(v, sys.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, functionOf(t, c, mod, name)))
		require.Equal(t, most, *v, name)
	}
	f := functionOf(t, c, mod, "shared")
	for a, expected := range map[sys.CUfunction_attribute]int32{
		sys.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: 64, sys.CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: 4, sys.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: 0,
		sys.CU_FUNC_ATTRIBUTE_PTX_VERSION: 75, sys.CU_FUNC_ATTRIBUTE_BINARY_VERSION: 90, sys.CU_FUNC_ATTRIBUTE_CACHE_MODE_CA: 0,
		sys.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: 49088, sys.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: -1,
		sys.CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET: 0,
	} {
		ok(t, c.CuFuncGetAttribute(v, a, f))
		require.Equal(t, expected, *v, a)
	}
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuFuncGetAttribute(v, sys.CU_FUNC_ATTRIBUTE_MAX, f))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuFuncGetAttribute(nil, 0, f))
	for _, tc := range []struct {
		a sys.CUfunction_attribute
		v int32
		r sys.CUresult
	}{ // as an H200 says
		{8, 227 << 10, 1}, {8, 227<<10 - 64, 0}, {8, -1, 1}, {9, 101, 1}, {9, -2, 1}, {9, 50, 0}, {0, 5, 1}, {4, 5, 1},
		{14, 2, 0}, {15, 3, 1}, {16, 1, 1}, {10, 1, 1}, {11, 1, 0}, {11, 2, sys.CUDA_ERROR_NOT_SUPPORTED},
	} {
		want(t, tc.r, c.CuFuncSetAttribute(f, tc.a, tc.v))
	}
	ok(t, c.CuFuncSetCacheConfig(f, sys.CU_FUNC_CACHE_PREFER_L1))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuFuncSetCacheConfig(f, 9))
	ok(t, c.CuFuncSetSharedMemConfig(f, 0))
}

// How many blocks a multiprocessor takes, as on an H200.
func TestOccupancy(t *testing.T) {
	c := inContext(t, 0)
	f := functionOf(t, c, loaded(t, c, probes), "count")
	n, size := new(int32), new(uintptr)
	for threads, blocks := range map[int32]int32{1: 32, 256: 8, 1024: 2, 1025: 0} {
		ok(t, c.CuOccupancyMaxActiveBlocksPerMultiprocessor(n, f, threads, 0))
		require.Equal(t, blocks, *n, threads)
	}
	ok(t, c.CuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(n, f, 32, 64<<10, 0))
	require.Zero(t, *n)
	ok(t, c.CuOccupancyMaxActiveBlocksPerMultiprocessor(n, f, 32, 40<<10))
	require.EqualValues(t, 5, *n)
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuOccupancyMaxActiveBlocksPerMultiprocessor(n, f, 0, 0))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(n, f, 32, 0, 8))
	for _, tc := range [][3]int32{{1, 256, 49152}, {8, 256, 29184}, {32, 32, 7296}} {
		ok(t, c.CuOccupancyAvailableDynamicSMemPerBlock(size, f, tc[0], tc[1]))
		require.EqualValues(t, tc[2], *size)
	}
	for _, tc := range [][2]int32{{9, 256}, {0, 256}, {33, 32}, {1, 2000}} {
		want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuOccupancyAvailableDynamicSMemPerBlock(size, f, tc[0], tc[1]))
	}
	block := new(int32)
	for limit, expected := range map[int32][2]int32{0: {8, 1024}, 100: {128, 64}} {
		ok(t, c.CuOccupancyMaxPotentialBlockSize(n, block, f, 0, 0, limit))
		require.Equal(t, expected, [2]int32{*n, *block})
	}
	need := sharedNeed() // 100 bytes a thread
	ok(t, c.CuOccupancyMaxPotentialBlockSize(n, block, f, need, 0, 0))
	require.EqualValues(t, 256, *block) // 8 times 26 KiB
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuOccupancyMaxPotentialBlockSize(nil, block, f, 0, 0, 0))
}

// A library is in every context that uses it, with variables of its own there.
func TestLibrary(t *testing.T) {
	c, other := inContext(t, 0), inContext(t, 1)
	lib, k, n := new(sys.CUlibrary), new(sys.CUkernel), new(uint32)
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuLibraryLoadData(nil, text2c(probes), nil, nil, 0, nil, nil, 0))
	option := sys.CU_LIBRARY_NUM_OPTIONS
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuLibraryLoadData(lib, text2c(probes), nil, nil, 0, &option, nil, 1))
	ok(t, initialised(t).CuLibraryLoadData(lib, text2c(probes), nil, nil, 0, nil, nil, 0))
	ok(t, c.CuLibraryGetKernel(k, *lib, sys.CString("count")))
	want(t, sys.CUDA_ERROR_NOT_FOUND, c.CuLibraryGetKernel(k, *lib, sys.CString("none")))
	ok(t, c.CuLibraryGetKernelCount(n, *lib))
	require.EqualValues(t, 7, *n)
	kernels := make([]sys.CUkernel, *n)
	ok(t, c.CuLibraryEnumerateKernels(&kernels[0], *n, *lib))
	require.Equal(t, *k, kernels[1])

	for i, c := range []sys.Caller{c, other, c} {
		f, of, p, size := new(sys.CUfunction), new(sys.CUmodule), new(sys.CUdeviceptr), new(uintptr)
		ok(t, c.CuKernelGetFunction(f, *k))
		ok(t, c.CuLaunchKernel(*f, 1, 1, 1, 1, 1, 1, 0, 0, nil, nil))
		ok(t, c.CuLaunchKernel(sys.CUfunction(*k), 1, 1, 1, 1, 1, 1, 0, 0, nil, nil))
		ok(t, c.CuLibraryGetGlobal(p, size, *lib, sys.CString("counter")))
		word := make([]byte, 8)
		ok(t, c.CuMemcpyDtoH_v2(at(word), *p, 8))
		require.EqualValues(t, 5+2*3+i/2*6, word[0])
		ok(t, c.CuLibraryGetModule(of, *lib))
		want(t, sys.CUDA_ERROR_NOT_PERMITTED, c.CuModuleUnload(*of))
	}
	v, name, of, off, bytes := new(int32), new(*byte), new(sys.CUlibrary), new(uintptr), new(uintptr)
	shared := kernels[6]
	ok(t, c.CuKernelSetAttribute(sys.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100<<10, shared, 0))
	for dev, most := range []int32{100 << 10, 49088} {
		ok(t, c.CuKernelGetAttribute(v, sys.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared, sys.CUdevice(dev)))
		require.Equal(t, most, *v)
	}
	f := new(sys.CUfunction)
	ok(t, c.CuKernelGetFunction(f, shared))
	ok(t, c.CuFuncGetAttribute(v, sys.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, *f))
	require.EqualValues(t, 100<<10, *v)
	want(t, sys.CUDA_ERROR_INVALID_DEVICE, c.CuKernelGetAttribute(v, 0, shared, 9))
	ok(t, c.CuKernelGetName(name, shared))
	require.Equal(t, "shared", sys.GoString(*name, 99))
	ok(t, c.CuKernelGetLibrary(of, shared))
	require.Equal(t, *lib, *of)
	ok(t, c.CuKernelGetParamInfo(shared, 0, off, bytes))
	require.EqualValues(t, 8, *bytes)
	ok(t, c.CuKernelSetCacheConfig(shared, 1, 0))

	ok(t, c.CuLibraryUnload(*lib))
	want(t, sys.CUDA_ERROR_INVALID_HANDLE, c.CuLibraryUnload(*lib))
	want(t, sys.CUDA_ERROR_INVALID_HANDLE, c.CuKernelGetFunction(f, *k))
	want(t, sys.CUDA_ERROR_INVALID_HANDLE, c.CuLaunchKernel(sys.CUfunction(*k), 1, 1, 1, 1, 1, 1, 0, 0, nil, nil))
	misused(t, 3)
	ok(t, c.CuLibraryLoadFromFile(lib, sys.CString("../../kernels/vector.ptx"), nil, nil, 0, nil, nil, 0))
	ok(t, c.CuLibraryUnload(*lib))
	want(t, sys.CUDA_ERROR_FILE_NOT_FOUND, c.CuLibraryLoadFromFile(lib, sys.CString("/nonexistent"), nil, nil, 0, nil, nil, 0))
}

// A context takes its modules along.
func TestModulesGoWithTheirContext(t *testing.T) {
	c := initialised(t)
	ctx, mod, f := new(sys.CUcontext), new(sys.CUmodule), new(sys.CUfunction)
	ok(t, c.CuCtxCreate_v2(ctx, 0, 0))
	in := c.With(*ctx)
	ok(t, in.CuModuleLoadData(mod, text2c(probes)))
	ok(t, in.CuModuleGetFunction(f, *mod, sys.CString("count")))
	ok(t, in.CuLaunchKernel(*f, 1, 1, 1, 1, 1, 1, 0, 0, nil, nil))
	ok(t, c.CuCtxDestroy_v2(*ctx))
	other := inContext(t, 0)
	want(t, sys.CUDA_ERROR_CONTEXT_IS_DESTROYED, other.CuModuleUnload(*mod))
	want(t, sys.CUDA_ERROR_CONTEXT_IS_DESTROYED, other.CuLaunchKernel(*f, 1, 1, 1, 1, 1, 1, 0, 0, nil, nil))
}
