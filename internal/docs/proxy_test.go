package main

import (
	"archive/zip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The module, and the version that the proxy has of it.
const (
	module  = "github.com/gpufd/gpufd"
	version = "v0.0.1"
)

// makeProxy makes a module proxy of files in dir, that has one version of the checkout.
func makeProxy(t *testing.T, checkout, dir string) {
	t.Helper()
	at := filepath.Join(dir, module, "@v")
	require.NoError(t, os.MkdirAll(at, 0o700))
	put := func(name, content string) {
		require.NoError(t, os.WriteFile(filepath.Join(at, name), []byte(content), 0o600))
	}
	mod, err := os.ReadFile(filepath.Join(checkout, "go.mod"))
	require.NoError(t, err)
	put("list", version+"\n")
	put(version+".info", `{"Version":"`+version+`","Time":"2026-01-01T00:00:00Z"}`)
	put(version+".mod", string(mod))
	f, err := os.Create(filepath.Join(at, version+".zip"))
	require.NoError(t, err)
	defer f.Close()
	w := zip.NewWriter(f)
	for _, name := range moduleFiles(t, checkout) {
		content, err := os.ReadFile(filepath.Join(checkout, name))
		require.NoError(t, err)
		entry, err := w.Create(module + "@" + version + "/" + name)
		require.NoError(t, err)
		_, err = entry.Write(content)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
}

// moduleFiles are the files of the checkout that belong to the module, not to one below it.
func moduleFiles(t *testing.T, checkout string) []string {
	t.Helper()
	out, err := exec.Command("git", "-C", checkout, "ls-files").Output()
	require.NoError(t, err)
	all := strings.Fields(string(out))
	var others []string
	for _, name := range all {
		if dir, is := strings.CutSuffix(name, "/go.mod"); is {
			others = append(others, dir+"/")
		}
	}
	return slices.DeleteFunc(all, func(name string) bool {
		return slices.ContainsFunc(others, func(dir string) bool { return strings.HasPrefix(name, dir) })
	})
}
