package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	root     = "../.."
	fromRoot = "abi/cuda-13.0.json"
)

// generate runs the generator from the module's root, as `make check` does,
// and returns what it wrote by name.
func generate(t *testing.T) map[string]string {
	out := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(out, "cu", "sys"), 0o755))
	require.NoError(t, run(fromRoot, out))
	return generated(t, out)
}

// generated reads the generated files below dir.
func generated(t *testing.T, dir string) map[string]string {
	files := map[string]string{}
	for _, pattern := range []string{"cu/z*.go", "cu/sys/z*.go"} {
		names, err := filepath.Glob(filepath.Join(dir, pattern))
		require.NoError(t, err)
		for _, name := range names {
			b, err := os.ReadFile(name)
			require.NoError(t, err)
			rel, err := filepath.Rel(dir, name)
			require.NoError(t, err)
			files[rel] = string(b)
		}
	}
	return files
}

func TestCheckedInFilesAreWhatTheGeneratorWrites(t *testing.T) {
	t.Chdir(root)
	checkedIn := generated(t, ".")
	require.NotEmpty(t, checkedIn)
	for range 2 {
		files := generate(t)
		require.ElementsMatch(t, slices.Collect(maps.Keys(checkedIn)), slices.Collect(maps.Keys(files)))
		for name, text := range files {
			// Not Equal: its message would print megabytes.
			require.True(t, text == checkedIn[name], "%s is not what the generator writes: run it and look at the difference", name)
		}
	}
}

// Every result of the driver has a sentinel in package cu, and every attribute
// a name to be found by.
func TestNothingIsWithoutAName(t *testing.T) {
	a := realABI(t)
	files := generated(t, root)
	errors, attributes := files["cu/zerrors.go"], files["cu/zattributes.go"]
	require.Greater(t, len(a.Enums.m["cudaError_enum"]), 90)
	for _, c := range a.Enums.m["cudaError_enum"] {
		if c.Value != 0 {
			require.Regexp(t, `(?m)^\tErr\w+ += Result\(sys\.`+c.Name+`\)$`, errors)
		}
	}
	for _, c := range a.Enums.m["CUdevice_attribute_enum"] {
		if name := strings.TrimPrefix(c.Name, "CU_DEVICE_ATTRIBUTE_"); name != "MAX" {
			require.Regexp(t, `(?m)^\tAttribute\w+ += Attribute\(sys\.`+c.Name+`\)$`, attributes)
			require.Regexp(t, `(?m)^\t"`+name+`": +Attribute\w+,$`, attributes)
		}
	}
}

func TestErrors(t *testing.T) {
	out := t.TempDir()
	require.Error(t, run(filepath.Join(out, "missing.json"), out))

	broken := filepath.Join(out, "broken.json")
	require.NoError(t, os.WriteFile(broken, []byte(`{"functions": 7}`), 0o600))
	require.ErrorContains(t, run(broken, out), "broken.json")

	unknown := filepath.Join(out, "unknown.json")
	abi := `{"functions": [{"symbol": "cuBrew", "params": [{"name": "pot", "type": "CUteapot"}]}]}`
	require.NoError(t, os.WriteFile(unknown, []byte(abi), 0o600))
	require.NoError(t, os.MkdirAll(filepath.Join(out, "cu", "sys"), 0o755))
	err := run(unknown, out)
	require.ErrorContains(t, err, "cuBrew")
	require.ErrorContains(t, err, `"CUteapot"`)
}
