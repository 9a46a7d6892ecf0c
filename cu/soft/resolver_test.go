package soft

import (
	"reflect"
	"strings"
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/stretchr/testify/require"
)

func TestResolver(t *testing.T) {
	a, err := Resolver("cuInit")
	require.NoError(t, err)
	again, err := Resolver("cuInit")
	require.NoError(t, err)
	require.Equal(t, a, again, "one callback per symbol")
	_, err = Resolver("cuNoSuchThing")
	require.ErrorContains(t, err, "cuNoSuchThing not in the software driver")
	require.True(t, lib.Has(Marker))
}

// Functions that are not implemented resolve and say so, with one callback for all.
func TestNotImplemented(t *testing.T) {
	want(t, sys.CUDA_ERROR_NOT_SUPPORTED, caller.CuDeviceGetNvSciSyncAttributes(nil, 0, 0))
	a, _ := Resolver("cuDeviceGetNvSciSyncAttributes")
	b, _ := Resolver("cuDeviceGetLuid")
	require.Equal(t, a, b)
	require.Subset(t, sys.Symbols(), Implemented(), "a symbol that is none of the ABI")
}

// Each Go function takes what its C prototype says, by number and width.
func TestPrototypes(t *testing.T) {
	for symbol, f := range calls() {
		method, ok := reflect.TypeFor[sys.Caller]().MethodByName("C" + symbol[1:])
		require.True(t, ok, symbol)
		have, wanted := reflect.TypeOf(f), method.Type
		require.Equal(t, wanted.NumIn()-1, have.NumIn(), symbol)
		for i := range have.NumIn() {
			a, b := have.In(i), wanted.In(i+1)
			require.Equal(t, b.Size(), a.Size(), "%s argument %d", symbol, i)
			if a.Kind() == reflect.Pointer && b.Kind() == reflect.Pointer {
				require.Equal(t, b.Elem().Size(), a.Elem().Size(), "%s argument %d", symbol, i)
			}
		}
	}
}

// GPUFD_SOFT_VERSION takes newer symbols away.
func TestVersion(t *testing.T) {
	out := output(t, "version", envVersion+"=12040")
	require.Equal(t, strings.Join([]string{
		"cuMemCreate <nil>",
		"cuCtxGetDevice_v2 symbol cuCtxGetDevice_v2 not in the software driver at CUDA 12.4: new in 13.0",
		"cuDeviceGetUuid_v2 <nil>",
		"cuNoSuchThing symbol cuNoSuchThing not in the software driver: not of the driver API",
	}, "\n"), out)
}
