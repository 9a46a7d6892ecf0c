package sys

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// abiFile is what these tests read of abi/cuda-13.0.json, from which the
// methods were generated.
type abiFile struct {
	Functions, Older []abiFunction
	Enums            map[string][]struct {
		Name  string
		Value int64
	}
}

type abiFunction struct {
	Symbol string
	Since  int
	Params []struct{ Name, Type string }
}

func readABI(t *testing.T) (a abiFile) {
	var file struct {
		abiFile
		OlderFunctions []abiFunction `json:"older_functions"`
	}
	b, err := os.ReadFile(filepath.Join("..", "..", "abi", "cuda-13.0.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &file))
	a = file.abiFile
	a.Older = file.OlderFunctions
	return a
}

func TestSymbolsAreThoseOfTheHeader(t *testing.T) {
	a := readABI(t)
	require.Len(t, a.Functions, 449)
	require.Len(t, a.Older, 51)
	var want []string
	for _, f := range append(a.Functions, a.Older...) {
		want = append(want, f.Symbol)
	}
	require.Equal(t, want, Symbols())
	require.Len(t, symbols(), numFunctions, "a symbol stands there twice")
}

func TestSince(t *testing.T) {
	a := readABI(t)
	unknown := 0
	for _, f := range append(a.Functions, a.Older...) {
		since, ok := Since(f.Symbol)
		require.True(t, ok, f.Symbol)
		require.Equal(t, f.Since, since, f.Symbol)
		if since == 0 {
			unknown++
		}
	}
	require.Equal(t, 1, unknown, "functions whose version the header does not say")

	tests := map[string]string{"cuMemMap": "10.2", "cuCtxCreate_v4": "12.5", "cuMemAlloc_v2": "3.2", "cuInit": "2.0"}
	for symbol, want := range tests {
		since, _ := Since(symbol)
		require.Equal(t, want, Version(since), symbol)
	}
	since, ok := Since("cuMakeCoffee")
	require.Zero(t, since)
	require.False(t, ok)
}

// A method has the header's parameters, as wide as C has them, and memory
// where C has memory. Which `void *` are no memory is internal/gen's to test.
func TestMethodsHaveTheHeadersParameters(t *testing.T) {
	a := readABI(t)
	kinds := map[string]reflect.Kind{
		"int": reflect.Int32, "unsigned int": reflect.Uint32, "size_t": reflect.Uintptr, "float": reflect.Float32,
		"unsigned long long": reflect.Uint64, "unsigned char": reflect.Uint8, "unsigned short": reflect.Uint16,
		"cuuint32_t": reflect.Uint32, "cuuint64_t": reflect.Uint64, "CUdevice": reflect.Int32,
		"CUdeviceptr": reflect.Uint64, "CUstream": reflect.Uintptr, "CUipcMemHandle": reflect.Struct,
		"CUmemLocation": reflect.Struct, "CUresult": reflect.Uint32,
	}
	methods := driverMethods()
	for _, f := range append(a.Functions, a.Older...) {
		m := methods[f.Symbol].Type
		require.Equal(t, len(f.Params), m.NumIn()-1, f.Symbol)
		require.LessOrEqual(t, len(f.Params), maxArgs)
		require.Equal(t, reflect.TypeFor[CUresult](), m.Out(0), f.Symbol)
		for i, p := range f.Params {
			got := m.In(i + 1).Kind()
			switch want, ok := kinds[p.Type]; {
			case ok:
				require.Equal(t, want, got, "%s %s", f.Symbol, p.Name)
			case strings.HasSuffix(p.Type, "void *"):
				require.Contains(t, []reflect.Kind{reflect.UnsafePointer, reflect.Uintptr}, got, "%s %s", f.Symbol, p.Name)
			case strings.HasSuffix(p.Type, "*"):
				require.Equal(t, reflect.Pointer, got, "%s %s", f.Symbol, p.Name)
			default:
				require.NotEqual(t, reflect.Pointer, got, "%s %s", f.Symbol, p.Name)
			}
		}
	}
}

func TestEnumString(t *testing.T) {
	seen := map[int64]bool{}
	for _, c := range readABI(t).Enums["cudaError_enum"] {
		if !seen[c.Value] {
			require.Equal(t, c.Name, CUresult(c.Value).String())
		}
		seen[c.Value] = true
	}
	require.Greater(t, len(seen), 90)

	require.Equal(t, "CUresult(12345)", CUresult(12345).String())
	require.Equal(t, "CU_CTX_SCHED_BLOCKING_SYNC", CUctx_flags(4).String(), "the first of two names")
	require.Equal(t, "CU_MEM_LOCATION_TYPE_DEVICE", CU_MEM_LOCATION_TYPE_DEVICE.String())
	require.Equal(t, "CUipcMem_flags(7)", CUipcMem_flags(7).String())
}
