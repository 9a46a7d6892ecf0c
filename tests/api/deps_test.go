package api

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// needNoDriver are packages of processes that load no libcuda and map no memory.
var needNoDriver = []string{"gpumem", "internal/wire", "internal/broker", "internal/serve", "keeper/internal/state", "keeper/internal/protocol", "keeper/internal/fdstore"}

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
