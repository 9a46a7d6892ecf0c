package keeper

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/gpufd/gpufd/"

// The dependencies of a program that uses packages but not the keeper, and those of the keeper
// without the command.
func TestDependencies(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("takes Go and the sources of gpufd")
	}
	for pkg, not := range map[string][]string{
		"cu":                      {"spf13/", module + "keeper"},
		"vmm":                     {"spf13/", module + "keeper"},
		"sock":                    {"spf13/", module + "keeper"},
		"share":                   {"spf13/", module + "keeper"},
		"channel":                 {"spf13/", module + "keeper"},
		"kernels":                 {"spf13/", module + "keeper"},
		"keeper/internal/fdstore": {"spf13/", "purego"},
		"keeper":                  {"spf13/"},
	} {
		out := ok(exec.CommandContext(soon(t), "go", "list", "-deps", module+pkg).Output())(t)
		require.Contains(t, string(out), module+pkg+"\n")
		for dep := range strings.Lines(string(out)) {
			for _, word := range not {
				require.NotContains(t, dep, word, "%s is built with it", pkg)
			}
		}
	}
}
