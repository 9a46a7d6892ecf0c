package programs

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/gpufd/gpufd/internal/testenv"
)

// Python returns an interpreter with the modules, the one on the path or the system's, or skips t.
func Python(t testing.TB, modules ...string) string {
	t.Helper()
	why := "there is no python3 here"
	for _, name := range []string{"python3", "/usr/bin/python3"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		if why = lacks(path, modules); why == "" {
			return path
		}
	}
	testenv.Need(t, testenv.Python, false, why)
	return ""
}

// lacking remembers what lacks found: some modules take seconds.
var lacking sync.Map

// lacks says why the interpreter cannot import a module, or nothing.
func lacks(path string, modules []string) string {
	for _, module := range modules {
		why, ok := lacking.Load(path + " " + module)
		if !ok {
			why = ""
			if out, err := exec.Command(path, "-c", "import "+module).CombinedOutput(); err != nil {
				lines := strings.Split(strings.TrimSpace(string(out)), "\n")
				why = fmt.Sprintf("%s has no %s: %s (%v)", path, module, lines[len(lines)-1], err)
			}
			lacking.Store(path+" "+module, why)
		}
		if why != "" {
			return why.(string)
		}
	}
	return ""
}

// NeedCC skips t where there is no C compiler.
func NeedCC(t testing.TB) {
	t.Helper()
	_, err := exec.LookPath("cc")
	testenv.Need(t, testenv.CC, err == nil, fmt.Sprint("there is no C compiler here: ", err))
}

// PythonDir holds the programs in Python that are clients of docs/wire.md.
var PythonDir = filepath.Join(Root(), "examples", "python")
