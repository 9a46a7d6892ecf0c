package main

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func realABI(t *testing.T) *abi {
	a, err := readABI(root + "/" + fromRoot)
	require.NoError(t, err)
	return a
}

func TestGoType(t *testing.T) {
	a := realABI(t)
	tests := []struct{ c, owner, name, want string }{
		{"int", "", "", "int32"},
		{"unsigned long long", "", "", "uint64"},
		{"size_t *", "", "", "*uintptr"},
		{"float", "", "", "float32"},
		{"const char *", "", "", "*byte"},
		{"char **", "", "", "**byte"},
		{"unsigned char[16]", "", "", "[16]uint8"},
		{"cuuint64_t", "", "", "uint64"},
		{"CUdeviceptr *", "", "", "*CUdeviceptr"},
		{"const CUmemAllocationProp *", "", "", "*CUmemAllocationProp"},
		{"void (*)(void *)", "", "", "uintptr"},
		{"void *", "cuMemcpyHtoD_v2", "srcHost", "unsafe.Pointer"},
		{"void **", "cuMemAllocHost_v2", "pp", "*unsafe.Pointer"},
		{"void *", "cuMemImportFromShareableHandle", "osHandle", "uintptr"},
		{"void *", "cuStreamAddCallback", "userData", "uintptr"},
		{"void *", "cuMemRetainAllocationHandle", "addr", "uintptr"},
		{"void *", "cuMemPoolImportFromShareableHandle", "handle", "uintptr"},
		{"void *", "cuMemPoolExportToShareableHandle", "handle_out", "unsafe.Pointer"},
		{"void *", "cuMemExportToShareableHandle", "shareableHandle", "unsafe.Pointer"},
		{"void *", "CUmemAllocationProp_st", "win32HandleMetaData", "uintptr"},
	}
	for _, tt := range tests {
		t.Run(tt.c+" "+tt.owner+" "+tt.name, func(t *testing.T) {
			got, err := a.goType(tt.c, tt.owner, tt.name)
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
	for _, c := range []string{"CUteapot", "CUteapot *", "long double"} {
		_, err := a.goType(c, "", "")
		require.ErrorContains(t, err, "is not known")
	}
}

// Every entry of the list of opaque `void *` means a parameter or a field that
// is there, so that a misspelt one cannot make a handle an unsafe.Pointer.
func TestOpaqueNamesExist(t *testing.T) {
	a := realABI(t)
	there := map[string]bool{}
	for _, f := range a.all() {
		for _, p := range f.Params {
			there[p.Name], there[f.Symbol+"."+p.Name] = true, true
		}
	}
	var visit func(tag string, fields []field)
	visit = func(tag string, fields []field) {
		for _, f := range fields {
			there[f.Name], there[tag+"."+f.Name] = true, true
			visit(tag, f.Fields)
		}
	}
	for tag, s := range a.Structs.m {
		visit(tag, s.Fields)
	}
	for _, name := range opaque {
		require.True(t, there[name], name)
	}
}

func TestCanonicalNames(t *testing.T) {
	a := realABI(t)
	tests := map[string]string{
		"enum cudaError_enum":                  "CUresult",
		"enum CUdevice_attribute_enum":         "CUdevice_attribute",
		"struct CUmemAllocationProp_st":        "CUmemAllocationProp",
		"struct CUmemLocation_st":              "CUmemLocation",
		"struct CUipcMemHandle_st":             "CUipcMemHandle",
		"struct CUDA_MEMCPY3D_st":              "CUDA_MEMCPY3D",
		"struct CUDA_MEMCPY3D_v1_st":           "CUDA_MEMCPY3D_v1",
		"union CUstreamBatchMemOpParams_union": "CUstreamBatchMemOpParams",
		"struct CUnobody_st":                   "",
	}
	for target, want := range tests {
		require.Equal(t, want, a.canonical(target), target)
	}
	require.Equal(t, "CUipcMemHandle", a.structName("CUipcMemHandle_st"))
	require.Equal(t, "CUmemLocation", a.declaredName("CUmemLocation_v1"))
	require.Equal(t, "CUdeviceptr", a.declaredName("CUdeviceptr_v2"))
}

func TestFieldName(t *testing.T) {
	tests := map[string]string{"size": "Size", "_pad": "Pad", "": "", "_internal_padding": "_", "win32HandleMetaData": "Win32HandleMetaData"}
	for c, want := range tests {
		require.Equal(t, want, fieldName(c), c)
	}
}

func TestPrototypeAndNames(t *testing.T) {
	f := function{Symbol: "cuMemAlloc_v2", Params: []param{{"dptr", "CUdeviceptr *"}, {"bytesize", "size_t"}}}
	require.Equal(t, "CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)", f.prototype())
	require.Equal(t, "CuMemAlloc_v2", f.method())
	for c, want := range map[string]string{"type": "type_", "c": "c_", "w": "w_", "r": "r_", "p": "p_", "runtime": "runtime_", "unsafe": "unsafe_", "range": "range_", "ptr": "ptr"} {
		require.Equal(t, want, paramName(c))
	}
	for name, want := range map[string]string{
		"OUT_OF_MEMORY": "ErrOutOfMemory", "INVALID_PTX": "ErrInvalidPTX", "NVLINK_UNCORRECTABLE": "ErrNVLinkUncorrectable",
	} {
		require.Equal(t, want, sentinel(name))
	}
}

// The layout assertions that the compiler checks are the ABI file's numbers.
func TestEveryStructAssertsItsSize(t *testing.T) {
	a := realABI(t)
	text := generated(t, root)["cu/sys/zstructs.go"]
	require.Greater(t, len(a.Structs.keys), 80)
	for _, tag := range a.Structs.keys {
		assertion := fmt.Sprintf("unsafe.Sizeof(%s{})-%d]\n", a.structName(tag), a.Structs.m[tag].Size)
		require.Contains(t, text, assertion)
	}
}

func TestTraceKinds(t *testing.T) {
	a := realABI(t)
	want := map[string]string{
		"cuMemMap":                    "x u u x u",
		"cuDeviceGetAttribute":        "x eCUdevice_attribute d",
		"cuModuleLoad":                "x s",
		"cuIpcOpenMemHandle_v2":       "x v u",
		"cuTexRefSetMipmapLevelClamp": "x f f",
		"cuCtxSynchronize":            "",
		"cuLaunchKernel":              "x u u u u u u u x x x",
	}
	for _, f := range a.all() {
		if kinds, ok := want[f.Symbol]; ok {
			require.Equal(t, kinds, traceKinds(a, f), f.Symbol)
			delete(want, f.Symbol)
		}
	}
	require.Empty(t, want)
}
