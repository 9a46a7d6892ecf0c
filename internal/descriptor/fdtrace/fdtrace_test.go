package fdtrace

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func makeOne(fd int) *os.File { return File(fd, "one") }

func TestWatcherIsToldByTheMaker(t *testing.T) {
	fd, err := unix.Dup(0)
	require.NoError(t, err)
	var stack []uintptr
	Watch(func(f *os.File) {
		require.Equal(t, "one", f.Name())
		stack = Here()
	})
	defer watcher.Store(nil)
	f := makeOne(fd)
	require.NoError(t, f.Close())
	text := Print(Past(Frames(stack), "github.com/gpufd/gpufd/internal/descriptor/fdtrace.File"))
	lines := strings.Split(text, "\n")
	require.Equal(t, "    github.com/gpufd/gpufd/internal/descriptor/fdtrace.makeOne", lines[0])
	require.Regexp(t, `^        .*fdtrace_test\.go:\d+$`, lines[1])
	require.Equal(t, "    github.com/gpufd/gpufd/internal/descriptor/fdtrace.TestWatcherIsToldByTheMaker", lines[2])
	require.Len(t, lines, 5, "neither testing nor the runtime")
	require.Len(t, Past(Frames(stack), "no such function"), len(Frames(stack)))
}
