package check

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// gpufd is the program, built once as it is released.
var gpufd string

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "gpufd-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	gpufd = filepath.Join(dir, "gpufd")
	build := exec.Command("go", "build", "-o", gpufd, "./cmd/gpufd")
	build.Dir = filepath.Join("..", "..")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
		return 1
	}
	return m.Run()
}
