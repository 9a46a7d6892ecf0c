package main

import (
	"bytes"
	"encoding/csv"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/internal/cli"
)

// onSoft builds our own rival, and has it run on the software driver.
func onSoft(t *testing.T) options {
	bin := filepath.Join(t.TempDir(), "gpufd")
	out, err := exec.Command("go", "build", "-o", bin, "../gpufd").CombinedOutput()
	require.NoError(t, err, string(out))
	soft := []string{bin, "-driver", "soft"}
	return options{
		rivals: commands{{ours, soft}, {cBefore, append(slices.Clone(soft), "-mode", "before")}, {"absent", []string{"/bin/false"}},
			{"dying", []string{"/bin/sh", "-c", `echo '{"ready":true,"info":"v1"}'; read x`}},
			{"idle", []string{"/bin/sh", "-c", `echo '{"ready":true}'; while read x; do echo '{}'; done`}}},
		sizes:      sizes{2 << 20, 8 << 20},
		iterations: 3, time: time.Minute, out: t.TempDir(),
	}
}

// table reads a CSV file that was written.
func table(t *testing.T, o options, name string) (rows []map[string]string) {
	f, err := os.Open(filepath.Join(o.out, name))
	require.NoError(t, err)
	defer f.Close()
	all, err := csv.NewReader(f).ReadAll()
	require.NoError(t, err)
	for _, r := range all[1:] {
		row := map[string]string{}
		for i, h := range all[0] {
			row[h] = r[i]
		}
		rows = append(rows, row)
	}
	return rows
}

func number(t *testing.T, s string) int {
	n, err := strconv.Atoi(s)
	require.NoError(t, err)
	return n
}

func TestHandoffs(t *testing.T) {
	o := onSoft(t)
	var out bytes.Buffer
	require.NoError(t, handoffs(t.Context(), o, &out))
	whole, imports := 0, 0
	for _, r := range table(t, o, "handoff.csv") {
		switch r["step"] {
		case "handoff":
			whole++
			require.Equal(t, "3", r["n"])
			require.Positive(t, number(t, r["p50_ns"]))
		case "import":
			imports++
			require.Equal(t, "consumer", r["side"])
			if r["rival"] == cBefore {
				require.Positive(t, number(t, r["at_p50_ns"]), "after the buffer was ready")
			}
		case "export":
			require.Negative(t, number(t, r["at_p50_ns"]), "before the buffer was ready")
		}
	}
	require.Equal(t, 8, whole, "two rivals, two sizes, two a turn")
	require.Equal(t, 8, imports)
	text := out.String()
	for _, want := range []string{
		"- **gpufd**: software driver", "; package share, ", "- **dying**: v1.\n",
		"\n- rival absent: it ended: exit status 1\n", "\n- 2MiB-first: rival dying: it ended: exit status 0\n",
		"\n- 2MiB-first: rival idle: its answer has no time\n",
		"| p50 of gpufd / c-before, 2 MiB, first of a turn ",
	} {
		require.Contains(t, text, want)
	}
	require.Regexp(t, `\| p50 of gpufd-before / c-before, 2 MiB, next of a turn +\| +– \|`, text)
	require.Regexp(t, `\| gpufd +\|[^|]+\| +– +\| +– +\|[^|]+\| +3 \|`, text, "three handoffs have no p95")
}

// The first size that does not fit the device is the last.
func TestSizesThatDoNotFit(t *testing.T) {
	o := onSoft(t)
	script := `echo '{"ready":true}'; while read what size chunks; do
		if [ $size -gt 67108864 ]; then echo '{"error":"cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2): no"}'; else echo '{"ns":'$size'}'; fi; done`
	o.rivals, o.sizes = commands{{ours, []string{"/bin/sh", "-c", script}}}, sizes{2 << 20, 1 << 30, 2 << 30}
	var out bytes.Buffer
	require.NoError(t, handoffs(t.Context(), o, &out))
	require.Contains(t, out.String(), "\n- 1 GiB and more: rival gpufd: cuMemCreate")
	require.Contains(t, out.String(), "## Handoff of 2 MiB")
	require.NotContains(t, out.String(), "## Handoff of 1 GiB")
	require.NotContains(t, out.String(), "## Handoff of 2 GiB")
}

// Steps are in the order in which they happen, whoever has them.
func TestParts(t *testing.T) {
	p := point{granularity, first}
	named := func(rival string, names ...string) *result {
		r := &result{rival: rival, point: p}
		for _, n := range names {
			r.step("consumer", n).ns = []float64{1}
		}
		return r
	}
	table := parts([]*result{named("a", "import", "map", "ack"), named("b", "own", "receive", "import", "reserve", "map")}, p)
	require.Equal(t, []string{"side", "step", "a", "b"}, table.Head)
	var names []string
	for _, row := range table.Rows {
		names = append(names, row[1])
	}
	require.Equal(t, []string{"own", "receive", "import", "reserve", "map", "ack"}, names)
	require.Equal(t, []string{"consumer", "reserve", "", "1.00 ns"}, table.Rows[3])
}

// The first rival is ours: without it there is nothing to compare.
func TestOursMustRun(t *testing.T) {
	o := options{rivals: commands{{ours, []string{"/bin/false"}}}}
	require.Error(t, handoffs(t.Context(), o, io.Discard))
}

func TestFlags(t *testing.T) {
	var c commands
	require.NoError(t, c.Set("a=/bin/x,-y,z"))
	require.Equal(t, commands{{"a", []string{"/bin/x", "-y", "z"}}}, c)
	for _, bad := range []string{"", "b", "b=", "=x", "a=/bin/y"} {
		require.Error(t, c.Set(bad), bad)
	}
	var s sizes
	require.NoError(t, s.Set("2MiB,1GiB"))
	require.Equal(t, "2MiB,1GiB", s.String())
	for _, bad := range []string{"", "0", "1MiB", "2MiB,", "-2MiB"} {
		require.Error(t, s.Set(bad), bad)
	}
}

func TestWrongFlags(t *testing.T) {
	for _, args := range [][]string{
		{}, {"-rival", "a"}, {"-rival", "a=/bin/false", "-iterations", "0"}, {"-rival", "a=/bin/false", "-time", "0s"},
		{"-rival", "a=/bin/false", "more"},
	} {
		var stdout, stderr strings.Builder
		require.Equal(t, cli.ExitUsage, run(args, &stdout, &stderr), args)
		require.Equal(t, 1, strings.Count(stderr.String(), "\n"), stderr.String())
	}
	var stdout, stderr strings.Builder
	require.Equal(t, cli.ExitFailed, run([]string{"-rival", "a=/bin/false", "-out", "/dev/null/here"}, &stdout, &stderr))
	require.Contains(t, stderr.String(), "/dev/null", "before anything is measured")
}
