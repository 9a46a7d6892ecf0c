// Package examples runs the lessons and compares what they print with what
// their comments say they print.
package examples

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

func TestMain(m *testing.M) { cutest.Main(m) }

// maxLines is what a lesson may be long: one sitting.
const maxLines = 80

// maxProcesses is that of the one that is three processes.
const maxProcesses = 150

func TestLessons(t *testing.T) {
	names := lessons(t)
	require.Len(t, names, 9)
	bin := build(t, "./...")
	for i, name := range names {
		t.Run(name, func(t *testing.T) {
			require.True(t, strings.HasPrefix(name, fmt.Sprintf("%02d-", i+1)), "numbered in order")
			source, err := os.ReadFile(filepath.Join(name, "main.go"))
			require.NoError(t, err)
			most := maxLines
			if name == "09-camera-model-sink" {
				most = maxProcesses
			}
			require.Less(t, strings.Count(string(source), "\n"), most)
			want := printed(string(source))
			require.NotEmpty(t, want)
			got := run(t, filepath.Join(bin, name))
			require.NoError(t, compare(want, got), "it printed:\n%s", got)
		})
	}
}

// The comparison itself can fail.
func TestCompare(t *testing.T) {
	require.NoError(t, compare("a\nb … d\n…\n", "a\nb c d\n\ne\n"))
	require.Error(t, compare("a\n", "a\nb\n"))
	require.Error(t, compare("a\nb\n", "a\n"))
	require.Error(t, compare("b … d\n", "b d\n"))
	require.Error(t, compare("a.c\n", "abc\n"))
	require.Equal(t, "x\ny\n", printed("// Lesson\n//\n// Prints:\n//\n//\tx\n//\ty\npackage main\n// z\n"))
}

// lessons are the directories of the lessons, in order.
func lessons(t *testing.T) (names []string) {
	dirs, err := filepath.Glob("[0-9][0-9]-*")
	require.NoError(t, err)
	slices.Sort(dirs)
	return dirs
}

// build builds the programs of those packages, unless they were brought along.
func build(t *testing.T, packages string) string {
	if dir := os.Getenv("GPUFD_BIN"); dir != "" {
		return dir
	}
	dir := t.TempDir()
	cmd := exec.Command("go", "build", "-o", dir+"/", packages)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return dir
}

func run(t *testing.T, program string) string {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), "GPUFD_DRIVER="+cutest.Kind().String())
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	require.NoError(t, err, "%s%s", out, &said)
	require.Equal(t, cutest.Kind() == cu.Soft && !strings.HasSuffix(program, "01-open-a-device"),
		strings.Contains(said.String(), "software driver"), "%s", &said)
	return string(out)
}

// printed is what a lesson's comment says that it prints.
func printed(source string) string {
	_, rest, _ := strings.Cut(source, "// Prints:\n//\n")
	rest, _, _ = strings.Cut(rest, "\npackage main")
	return strings.ReplaceAll(rest+"\n", "//\t", "")
}

// compare matches output with what was expected of it, where … is any text
// that is not empty, and on a line of its own any number of lines.
func compare(want, got string) error {
	pattern := regexp.QuoteMeta(want)
	pattern = strings.ReplaceAll(pattern, "\n…\n", "\n(?s:.+)\n")
	pattern = strings.ReplaceAll(pattern, "…", ".+")
	if !regexp.MustCompile("^" + pattern + "$").MatchString(got) {
		return errors.New("that is not what its comment says:\n" + want)
	}
	return nil
}
