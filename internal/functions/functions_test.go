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

// inRoot runs in a copy of what the program reads of the module's root.
func inRoot(t *testing.T, files map[string]string) {
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	}
	t.Chdir(dir)
}

const typedInit = `package cu

// Open opens it (cuInit).
func Open() { d.call.CuInit(0) }

// Start is another.
func Start() {}
`

func TestTableSaysWhatIsThere(t *testing.T) {
	inRoot(t, map[string]string{
		"cu/driver.go":      typedInit,
		"cu/driver_test.go": "package cu\nfunc f() { c.CuMemAlloc_v2() }\n",
		"run/1.txt":         "cuInit\ncuMemAlloc_v2\n",
		"run/2.txt":         "cuInit\n",
	})
	require.NoError(t, run(false, "run", "soft"))
	require.NoError(t, os.WriteFile(recordOf("cuda"), []byte("cuInit\n"), 0o644))
	require.NoError(t, run(false, "", ""))
	b, err := os.ReadFile(page)
	require.NoError(t, err)
	text := string(b)
	require.Contains(t, text, "| cuInit | 2.0 | yes | Open | yes | soft, H200 |\n")
	require.Contains(t, text, "| cuMemAlloc_v2 | 3.2 | yes |  | yes | soft |\n")
	require.Contains(t, text, "| cuMulticastCreate | 12.1 | yes |  |  |  |\n")
	require.Contains(t, text, "All 500 functions")
	require.Contains(t, text, "2 on the software driver, 1 on an H200")
	require.NoError(t, run(true, "", ""))
	require.NoError(t, run(true, "run", "soft"))
}

func TestCheckFindsDrift(t *testing.T) {
	inRoot(t, map[string]string{"cu/driver.go": typedInit, "run/1.txt": "cuInit\n"})
	require.NoError(t, run(false, "run", "soft"))
	require.NoError(t, os.WriteFile("run/2.txt", []byte("cuMemFree_v2\n"), 0o644))
	require.ErrorContains(t, run(true, "run", "soft"), "soft.txt is not what it would be")
	require.NoError(t, os.WriteFile("cu/driver.go", []byte(strings.ReplaceAll(typedInit, "Open", "Begin")), 0o644))
	require.ErrorContains(t, run(true, "", ""), "would be | cuInit | 2.0 | yes | Begin |")
}

func TestWhatTheTableRefuses(t *testing.T) {
	inRoot(t, map[string]string{"cu/driver.go": strings.ReplaceAll(typedInit, "cuInit", "it")})
	require.ErrorContains(t, run(false, "", ""), "comment says so: cuInit")
	require.ErrorContains(t, run(false, "nowhere", "soft"), "no test has recorded")
	require.ErrorContains(t, run(false, "run", "both"), "wants soft or cuda")
}

// oldest is the CUDA version whose driver package cu still takes.
const oldest = 11040

// Where the oldest driver has a function in an older ABI only, package cu can
// call that.
func TestNewABIsHaveAnOldStandIn(t *testing.T) {
	src, err := readSource("../../cu")
	require.NoError(t, err)
	require.NotEmpty(t, src.called)
	require.Empty(t, withoutStandIn(src.called))

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
			return plainName(s) != plainName(symbol) || v > oldest
		})
		if since > oldest && len(old) > 0 && !slices.ContainsFunc(old, func(s string) bool { return called[s] }) {
			missing = append(missing, fmt.Sprintf("%s came with CUDA %s, and %s is not called", symbol, sys.Version(since), strings.Join(old, " or ")))
		}
	}
	return missing
}
