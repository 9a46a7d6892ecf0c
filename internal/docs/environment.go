package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// variables are those that the commands and the library read. Those of the software driver
// are in the doc comment of cu/soft.
var variables = map[string]string{
	"GPUFD_DRIVER":             "`auto`, `cuda` or `soft`: the driver that a program takes without `--driver`. `cuda` never falls back to the software driver",
	"GPUFD_SOCKET":             "the keeper's socket, for `gpufd` without `--socket`, and for the Python package; not for `gpufd channel`",
	"GPUFD_TRACE":              "1 prints every driver call to standard error, with its arguments, result and duration",
	"NVIDIA_DRA_LOCAL_IPC_DIR": "the directory that containers of a Kubernetes ResourceClaim share: `gpufd keeper` listens there without `--socket`",
	"TERM":                     "`dumb` shows no progress on a terminal",
	"TMPDIR":                   "the directory of `gpufd-UID`, for sockets, without `XDG_RUNTIME_DIR`; default `/tmp`",
	"XDG_RUNTIME_DIR":          "an absolute path: sockets are in its directory `gpufd`",
}

// developers are those that the tests and benchmarks of this repository read.
var developers = map[string]string{
	"GPUFD_ALL":                "1 runs all tests on a GPU, also those that the software driver proves",
	"GPUFD_BENCH_DIR":          "the directory of the files that the benchmarks of `vmm` load",
	"GPUFD_BENCH_SIZE":         "how much memory the benchmarks of `vmm` and `kernels` use, such as 64GiB",
	"GPUFD_BIN":                "the directory of built commands to test; without it, tests build them",
	"GPUFD_CALLED":             "the directory in which tests note the driver functions that succeeded, for docs/functions.md",
	"GPUFD_CHANNEL_KILLS":      "how long the test kills readers of a channel, such as 2m",
	"GPUFD_CHANNEL_PACE":       "how long the test passes 10,000 frames a second, such as 5m",
	"GPUFD_CORPUS":             "the directory of the kernels to test; the default is that of the repository",
	"GPUFD_DUMP":               "the file for the operands and results of `GPUFD_FORM`",
	"GPUFD_EMULATED":           "1: the tests run under qemu-user",
	"GPUFD_FORM":               "the form of a PTX instruction to dump",
	"GPUFD_HOSTILE":            "how long hostile processes besiege a producer, such as 60s",
	"GPUFD_INSTALLED":          "1 tests the Python package that pip has installed",
	"GPUFD_KEEP":               "the directory that keeps all outputs of the corpus",
	"GPUFD_PYTHON":             "the directory of the Python package to benchmark",
	"GPUFD_RECORD":             "the directory for recordings of what a GPU computes",
	"GPUFD_REQUIRE_CC":         "1: tests fail, and are not skipped, without a C compiler",
	"GPUFD_REQUIRE_GPU":        "1: the same without a GPU",
	"GPUFD_REQUIRE_NAMESPACES": "1: the same without namespaces",
	"GPUFD_REQUIRE_PYTHON":     "1: the same without Python and what the tests want of it",
	"GPUFD_REQUIRE_RUNC":       "1: the same without runc and root",
	"GPUFD_REQUIRE_TWO":        "1: the same without two GPUs",
	"GPUFD_SEED":               "the number with which the soak test repeats the decisions of a run",
	"GPUFD_SOAK":               "how often the soak test hands over; 1 runs other long tests in full",
	"GPUFD_VECTORS":            "the file of wire records that the Python tests read",
}

// between are those by which a program tells its own child something, besides private.
var between = map[string]bool{
	"GPUFD_CASE": true, "GPUFD_CONFORMANCE_FROM": true, "GPUFD_DOCTOR_ROLE": true, "GPUFD_FAKE_CUDA": true,
	"GPUFD_LEAK_PATIENCE": true, "GPUFD_SEEDS": true, "GPUFD_SHARED_GPU": true,
}

// private matches the names that only a test and its child processes use.
var private = regexp.MustCompile(`_(CU)?TEST_|_PLANT$`)

// ours matches the names of this project's variables.
var (
	ours  = regexp.MustCompile(`^GPUFD_[A-Z0-9_]+$`)
	named = regexp.MustCompile(`\bGPUFD_[A-Z0-9_]+\b`)
)

// environment returns the chapter on variables. It fails if the sources name another.
func environment(root string) (string, error) {
	soft, err := softVariables(root)
	if err != nil {
		return "", err
	}
	all, err := namedVariables(root)
	if err != nil {
		return "", err
	}
	return describe(all, soft)
}

// describe says what the variables of that name do; those of the software driver do what soft
// says.
func describe(all []string, soft string) (string, error) {
	for _, name := range all {
		if variables[name] == "" && developers[name] == "" && !between[name] && !private.MatchString(name) && !strings.Contains("\n"+soft, "\n"+name+" ") {
			return "", fmt.Errorf("the sources read %s, and neither internal/docs (variables, developers) nor the doc comment of cu/soft says what it does", name)
		}
	}
	var b strings.Builder
	writeTable(&b, variables)
	b.WriteString("\nThe software driver reads these when a process first uses it:\n\n```text\n" + soft + "```\n")
	b.WriteString("\nThe tests and benchmarks of gpufd itself read these:\n\n")
	writeTable(&b, developers)
	b.WriteString("\nPrograms and tests set `" + strings.Join(slices.Sorted(maps.Keys(between)), "`, `") + "`, and all with TEST or PLANT\nin their names, for processes that they start. Nobody else sets them.\n")
	return b.String(), nil
}

func writeTable(b *strings.Builder, does map[string]string) {
	b.WriteString("| variable | what it does |\n|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(does)) {
		fmt.Fprintf(b, "| `%s` | %s |\n", name, does[name])
	}
}

// softVariables returns what cu/soft says of its own variables.
func softVariables(root string) (string, error) {
	s, err := parsed(filepath.Join(root, "cu/soft"))
	if err != nil {
		return "", err
	}
	for _, f := range s.files {
		if f.Doc == nil {
			continue
		}
		var b strings.Builder
		for line := range strings.Lines(f.Doc.Text()) {
			if strings.HasPrefix(line, "\t") {
				b.WriteString(line[1:])
			} else if b.Len() > 0 {
				return b.String(), nil
			}
		}
	}
	return "", fmt.Errorf("the doc comment of cu/soft has no list of variables")
}

// namedVariables returns the variables that are strings of Go's sources, or stand anywhere in others.
func namedVariables(root string) (names []string, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", "build", "docs", "testdata"}, d.Name()):
			return fs.SkipDir
		case d.IsDir():
			return nil
		}
		found, err := namedIn(path)
		names = append(names, found...)
		return err
	})
	slices.Sort(names)
	return slices.Compact(names), err
}

// namedIn are the variables that one file names.
func namedIn(path string) (names []string, err error) {
	switch name := filepath.Base(path); filepath.Ext(name) {
	case ".go":
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && ours.MatchString(text(lit)) {
				names = append(names, text(lit))
			}
			return true
		})
		return names, nil
	case ".py", ".c", ".h", ".sh", ".yaml", ".service":
	default:
		if name != "Makefile" && filepath.Base(filepath.Dir(path)) != ".ci" {
			return nil, nil
		}
	}
	b, err := os.ReadFile(path)
	return named.FindAllString(string(b), -1), err
}

// exitCodes returns the constants of internal/cli with their comments.
func exitCodes(root string) (string, error) {
	s, err := parsed(filepath.Join(root, "internal/cli"))
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("| code | meaning |\n|---:|---|\n")
	n := 0
	for _, f := range s.files {
		ast.Inspect(f, func(node ast.Node) bool {
			spec, ok := node.(*ast.ValueSpec)
			if !ok || !strings.HasPrefix(spec.Names[0].Name, "Exit") || spec.Comment == nil || len(spec.Values) != 1 {
				return true
			}
			if lit, ok := spec.Values[0].(*ast.BasicLit); ok {
				fmt.Fprintf(&b, "| %s | %s |\n", lit.Value, strings.TrimSpace(spec.Comment.Text()))
				n++
			}
			return true
		})
	}
	if n == 0 {
		return "", fmt.Errorf("internal/cli has no exit codes")
	}
	return b.String(), nil
}
