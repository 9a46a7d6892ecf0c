package soft

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/ebitengine/purego"
	"github.com/gpufd/gpufd/cu/sys"
)

// Marker is a symbol that only this driver has, a function without arguments that
// returns 0. Layers above look for it to find out what kind of driver they have.
const Marker = "gpufdSoftDriver"

// calls returns every symbol that the driver implements, under the exact name in
// libcuda. The arguments have C's types: a callback takes from each argument slot
// what its type holds, so that garbage above an int does no harm. Most programs never make it.
var calls = sync.OnceValue(func() map[string]any {
	t := table()
	for symbol, same := range aliases {
		t[symbol] = t[same]
	}
	return t
})

// aliases are symbols of one function, as the two have the same ABI.
var aliases = map[string]string{
	"cuCtxDestroy_v2":              "cuCtxDestroy",
	"cuCtxPopCurrent_v2":           "cuCtxPopCurrent",
	"cuCtxPushCurrent_v2":          "cuCtxPushCurrent",
	"cuDeviceGetUuid_v2":           "cuDeviceGetUuid",
	"cuDevicePrimaryCtxRelease_v2": "cuDevicePrimaryCtxRelease",
	"cuDevicePrimaryCtxReset_v2":   "cuDevicePrimaryCtxReset",
	"cuEventElapsedTime_v2":        "cuEventElapsedTime",
	"cuGraphInstantiate_v2":        "cuGraphInstantiate",
	"cuIpcOpenMemHandle":           "cuIpcOpenMemHandle_v2",
	"cuMemHostRegister_v2":         "cuMemHostRegister",
	"cuMemcpy2DUnaligned_v2":       "cuMemcpy2D_v2",
}

// addresses holds the C functions made so far. They are never freed, and a
// process can have 2,000, so each is made once, when it is asked for; all that
// is not implemented shares one.
var addresses = struct {
	sync.Mutex
	of map[string]uintptr
}{of: make(map[string]uintptr)}

// Resolver returns the address of a C function by its exact symbol. It is a
// [sys.Resolver]. A symbol of the driver API that is not implemented resolves to
// a function that returns CUDA_ERROR_NOT_SUPPORTED. A symbol newer than
// GPUFD_SOFT_VERSION does not resolve, nor does cuInit if the driver cannot
// start: its error says why, with a [*ConfigError] if the environment is to
// blame.
func Resolver(symbol string) (address uintptr, err error) {
	if symbol == Marker {
		return callback(Marker, func() uintptr { return 0 }), nil
	}
	since, ok := sys.Since(symbol)
	if !ok {
		return 0, fmt.Errorf("symbol %s not in the software driver: not of the driver API", symbol)
	}
	if v := driver.config().version; since > v {
		return 0, fmt.Errorf("symbol %s not in the software driver at CUDA %s: new in %s",
			symbol, sys.Version(v), sys.Version(since))
	}
	if driver.config().vmm == 0 && slices.Contains(vmmFunctions, symbol) {
		return callback("no VMM", driver.vmmDisabled), nil
	}
	if symbol == "cuInit" {
		if err := driver.prepare(); err != nil {
			return 0, err
		}
	}
	if f, ok := calls()[symbol]; ok {
		return callback(symbol, f), nil
	}
	return callback("", notSupported), nil
}

// notSupported stands for every function that is not implemented. C does not
// mind that it takes no arguments.
func notSupported() sys.CUresult { return sys.CUDA_ERROR_NOT_SUPPORTED }

// callback returns the C function of a Go function, by name.
func callback(name string, f any) uintptr {
	addresses.Lock()
	defer addresses.Unlock()
	a, ok := addresses.of[name]
	if !ok {
		a = purego.NewCallback(f)
		addresses.of[name] = a
	}
	return a
}

// Implemented returns the symbols that do something, sorted. The others return
// CUDA_ERROR_NOT_SUPPORTED.
func Implemented() []string { return slices.Sorted(maps.Keys(calls())) }
