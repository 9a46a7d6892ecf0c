package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// inRoot runs in a copy of what the program reads of the module's root.
func inRoot(t *testing.T, files map[string]string) {
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	}
	require.NoError(t, os.MkdirAll(filepath.Join(dir, records), 0o755))
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
