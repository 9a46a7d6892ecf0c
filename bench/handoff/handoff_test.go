package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/internal/cli"
)

// onSoft compares our own rival, this binary, with itself and with others, on the software driver.
func onSoft(t *testing.T) options {
	soft := []string{os.Args[0], "-as", "producer", "-driver", "soft"}
	return options{
		rivals: rival.Commands{{Name: "gpufd", Argv: soft}, {Name: base, Argv: soft}, {Name: "absent", Argv: []string{"/bin/false"}},
			{Name: "dying", Argv: []string{"/bin/sh", "-c", `echo '{"ready":true,"info":"v1"}'; read x`}},
			{Name: "idle", Argv: []string{"/bin/sh", "-c", `echo '{"ready":true}'; while read x; do echo '{}'; done`}}},
		sizes:      []uint64{2 << 20, 8 << 20},
		iterations: 3, time: time.Minute, out: t.TempDir(),
	}
}

func TestHandoffs(t *testing.T) {
	o := onSoft(t)
	var out, complaint bytes.Buffer
	require.NoError(t, handoffs(t.Context(), o, &out, &complaint))
	csv, err := os.ReadFile(filepath.Join(o.out, "handoff.csv"))
	require.NoError(t, err)
	for _, row := range []string{"gpufd,2097152,first,3,", "gpufd,8388608,next,3,", "c,2097152,next,3,", "c,8388608,first,3,"} {
		require.Equal(t, 1, strings.Count(string(csv), "\n"+row), row)
	}
	require.Equal(t, 1+8, strings.Count(string(csv), "\n"), "two rivals, two sizes, two a turn")
	text := out.String()
	for _, want := range []string{
		"- gpufd: software driver", "- dying: v1\n", "\n- rival absent: it ended: exit status 1\n",
		"\n- handoff 2097152: rival dying: it ended: exit status 0\n", "\n- rival idle: its answer has no time\n",
	} {
		require.Contains(t, text, want)
	}
	require.Equal(t, 3, strings.Count(complaint.String(), "left out: "))
	require.Regexp(t, `\| gpufd +\|[^|]+\| +– +\| +– +\|[^|]+\| +3 +\|`, text, "three handoffs have no p95")
}

// The first size that does not fit the device is the last.
func TestSizesThatDoNotFit(t *testing.T) {
	o := onSoft(t)
	script := `echo '{"ready":true}'; while read what size; do
		if [ $size -gt 67108864 ]; then echo '{"error":"cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2): no"}'; else echo '{"ns":'$size'}'; fi; done`
	o.rivals, o.sizes = rival.Commands{{Name: "gpufd", Argv: []string{"/bin/sh", "-c", script}}}, []uint64{2 << 20, 1 << 30, 2 << 30}
	var out bytes.Buffer
	require.NoError(t, handoffs(t.Context(), o, &out, io.Discard))
	require.Contains(t, out.String(), "\n- 1 GiB and more: handoff 1073741824: rival gpufd: cuMemCreate")
	require.Contains(t, out.String(), "## Handoff of 2 MiB")
	require.NotContains(t, out.String(), "## Handoff of 1 GiB")
	require.NotContains(t, out.String(), "## Handoff of 2 GiB")
}

// The first rival is ours: without it there is nothing to compare.
func TestOursMustRun(t *testing.T) {
	o := options{rivals: rival.Commands{{Name: "gpufd", Argv: []string{"/bin/false"}}}}
	require.Error(t, handoffs(t.Context(), o, io.Discard, io.Discard))
}

func TestWrongFlags(t *testing.T) {
	for _, args := range [][]string{
		{}, {"-rival", "a"}, {"-rival", "a=/bin/false", "-iterations", "0"}, {"-rival", "a=/bin/false", "-time", "0s"},
		{"-rival", "a=/bin/false", "more"},
	} {
		var stdout, stderr strings.Builder
		require.Equal(t, cli.ExitUsage, run(args, nil, &stdout, &stderr), args)
		require.Equal(t, 1, strings.Count(stderr.String(), "\n"), stderr.String())
	}
	var stdout, stderr strings.Builder
	require.Equal(t, cli.ExitFailed, run([]string{"-rival", "a=/bin/false", "-out", "/dev/null/here"}, nil, &stdout, &stderr))
	require.Contains(t, stderr.String(), "/dev/null", "before anything is measured")
}
