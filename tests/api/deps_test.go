package api

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// needNoDriver are packages of processes that load no libcuda and map no memory.
var needNoDriver = []string{"gpumem", "internal/wire", "internal/broker", "internal/serve", "keeper/api", "keeper/internal/state", "keeper/internal/protocol", "keeper/internal/fdstore", "keeper/internal/moving", "keeper/server"}

func TestPackagesThatNeedNoDriver(t *testing.T) {
	driver := regexp.MustCompile(`^github\.com/(gpufd/gpufd/(cu|vmm)\b|ebitengine/purego)`)
	for _, pkg := range append(needNoDriver, "vmm") {
		out, err := exec.Command("go", "list", "-deps", "github.com/gpufd/gpufd/"+pkg).Output()
		require.NoError(t, err)
		var found []string
		for dep := range strings.Lines(string(out)) {
			if driver.MatchString(dep) {
				found = append(found, strings.TrimSpace(dep))
			}
		}
		if pkg == "vmm" {
			require.Contains(t, found, "github.com/gpufd/gpufd/cu", "the test looks for what is there")
			continue
		}
		require.Empty(t, found, pkg)
	}
}

// A program that uses a library package is built without the commands' parts and without the
// keeper, unless it asks for that.
func TestDependencies(t *testing.T) {
	const module = "github.com/gpufd/gpufd/"
	for pkg, not := range map[string][]string{
		"cu": {"spf13/", module + "keeper"}, "vmm": {"spf13/", module + "keeper"}, "sock": {"spf13/", module + "keeper"},
		"counter": {"spf13/", module + "share", module + "sock", module + "internal/serve"},
		"share":   {"spf13/", module + "keeper"}, "channel": {"spf13/", module + "keeper"}, "weights": {"spf13/", module + "keeper"}, "kernels": {"spf13/", module + "keeper"},
		"keeper": {"spf13/", module + "keeper/server"}, "keeper/server": {"spf13/"},
	} {
		out, err := exec.Command("go", "list", "-deps", module+pkg).Output()
		require.NoError(t, err)
		require.Contains(t, string(out), module+pkg+"\n")
		for _, word := range not {
			require.NotContains(t, string(out), word, "%s is built with it", pkg)
		}
	}
}
