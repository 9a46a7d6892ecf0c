package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/sys"
)

func TestFunctions(t *testing.T) {
	dir := t.TempDir()
	source := "package cu\n\n// Open opens it (cuInit).\nfunc Open() { d.call.CuInit(0) }\n"
	path := filepath.Join(dir, "driver.go")
	require.NoError(t, os.WriteFile(path, []byte(source), 0o600))
	page, err := functions(dir)
	require.NoError(t, err)
	require.Contains(t, page, "| cuInit | 2.0 | Open | yes |\n")
	require.Contains(t, page, "| cuMulticastCreate | 12.1 |  |  |\n")
	require.Contains(t, page, "1 are typed")
	require.NoError(t, os.WriteFile(path, []byte(strings.ReplaceAll(source, "cuInit", "it")), 0o600))
	_, err = functions(dir)
	require.ErrorContains(t, err, "comment says so: cuInit")
}

// oldest is the CUDA version whose driver package cu still takes.
const oldest = 11040

// Package cu can call the older ABI of each function that the oldest driver has in that ABI
// only.
func TestNewABIsHaveAnOldStandIn(t *testing.T) {
	calls, _, err := readPackage("../../../cu")
	require.NoError(t, err)
	require.NotEmpty(t, calls)
	require.Empty(t, withoutStandIn(calls))

	planted := map[string]bool{"cuStreamWaitValue32_v2": true, "cuMemGetHandleForAddressRange": true}
	require.Equal(t, []string{"cuStreamWaitValue32_v2 came with CUDA 11.7, and cuStreamWaitValue32 is not called"}, withoutStandIn(planted))
	planted["cuStreamWaitValue32"] = true
	require.Empty(t, withoutStandIn(planted))
}

// withoutStandIn lists the functions called that are too new, and none of whose
// older ABIs is.
func withoutStandIn(called map[string]bool) (missing []string) {
	for symbol := range called {
		since, _ := sys.Since(symbol)
		old := slices.DeleteFunc(sys.Symbols(), func(s string) bool {
			v, _ := sys.Since(s)
			return withoutABI(s) != withoutABI(symbol) || v > oldest
		})
		if since > oldest && len(old) > 0 && !slices.ContainsFunc(old, func(s string) bool { return called[s] }) {
			missing = append(missing, fmt.Sprintf("%s came with CUDA %s, and %s is not called", symbol, sys.Version(since), strings.Join(old, " or ")))
		}
	}
	return missing
}
