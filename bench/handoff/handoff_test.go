package main

import (
	"encoding/csv"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/bench/internal/report"
	"github.com/gpufd/gpufd/internal/cli"
)

// onSoft builds our own rival, and has it run on the software driver.
func onSoft(t *testing.T) options {
	bin := filepath.Join(t.TempDir(), "gpufd")
	out, err := exec.Command("go", "build", "-o", bin, "../gpufd").CombinedOutput()
	require.NoError(t, err, string(out))
	soft := []string{bin, "-driver", "soft"}
	return options{name: "why",
		rivals: commands{{ours, soft}, {cBefore, append(slices.Clone(soft), "-mode", "before")}, {"absent", []string{"/bin/false"}},
			{"dying", []string{"/bin/sh", "-c", `echo '{"ready":true,"info":"v1"}'; read x`}},
			{"idle", []string{"/bin/sh", "-c", `echo '{"ready":true}'; while read x; do echo '{}'; done`}}},
		sizes: sizes{2 << 20, 8 << 20}, largest: 8 << 20, chunks: 4, consumers: 4, starts: 1,
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
	require.NoError(t, handoffs(t.Context(), o))
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
	text, err := os.ReadFile(filepath.Join(o.out, "handoff.md"))
	require.NoError(t, err)
	for _, want := range []string{
		"- **gpufd**: software driver", "; package share, ", "- **dying**: v1.\n",
		"\n- rival absent: it ended: exit status 1\n", "\n- 2MiB-first: rival dying: it ended: exit status 0\n",
		"\n- 2MiB-first: rival idle: its answer has no time\n",
		"quantiles of all handoffs and of their steps",
		"| p50 of gpufd / c-before, 2 MiB, first of a turn ",
	} {
		require.Contains(t, string(text), want)
	}
	for claim, limit := range map[string]string{
		"gpufd-before / c-before, 2 MiB, next": "1.1", "gpufd-spin / c-before, 2 MiB, next": "1", "gpufd-spin / c-before, 2 MiB, first": "0.7",
	} {
		require.Regexp(t, `\| p50 of `+claim+` of a turn +\| +`+limit+` \| +– \| not measured \|`, string(text))
	}
	require.Regexp(t, `\| gpufd +\|[^|]+\| +– +\| +– +\|[^|]+\| +3 \|`, string(text), "three handoffs have no p95")
	require.FileExists(t, filepath.Join(o.out, "handoff-next.svg"))
}

func TestGrowth(t *testing.T) {
	o := onSoft(t)
	require.NoError(t, growth(t.Context(), o))
	counts := map[string]int{}
	for _, r := range table(t, o, "growth.csv") {
		counts[r["what"]]++
		require.Positive(t, number(t, r["p50_ns"]))
	}
	require.Equal(t, map[string]int{"size and chunks": 2*2 + 2*2, "consumers with a context": 3, "consumers without a context": 3, "start": 2,
		"fresh, mapped, context first": 2, "fresh, mapped, at the same time": 2, "fresh, mapped, mapping first": 2,
		"fresh, usable, context first": 2, "fresh, usable, at the same time": 2, "fresh, usable, mapping first": 2}, counts)
	text, err := os.ReadFile(filepath.Join(o.out, "growth.md"))
	require.NoError(t, err)
	start := string(text)[strings.Index(string(text), "## From no process"):]
	for _, name := range []string{"absent", "dying", "idle"} {
		require.Contains(t, start, "\n- rival "+name+": ")
	}
	for _, kind := range []string{"with", "without"} {
		require.Regexp(t, `\| exponent of the time over consumers `+kind+` a context +\| +1\.1 \| +[-0-9.]+ \|`, string(text))
		require.Regexp(t, `\| exports by the driver while consumers `+kind+` a context attach +\| +0 \| +0 \| met `, string(text))
	}
}

// Time that is over leaves out what comes later, and says so; the first point of all is measured.
func TestGrowthWithoutTime(t *testing.T) {
	o := onSoft(t)
	o.budget, o.rivals = 1, o.rivals[:2]
	require.NoError(t, growth(t.Context(), o))
	text, err := os.ReadFile(filepath.Join(o.out, "growth.md"))
	require.NoError(t, err)
	require.Contains(t, string(text), "\n- 8 MiB and more: the time for all of it was over\n")
	require.Contains(t, string(text), "\n- 2 consumers and more: the time for all of it was over\n")
	require.Regexp(t, `\| exponent of gpufd's time over size, against that of c-before if it is above 1 +\| +1\.1 \| +– \| not measured \|`, string(text))
	require.Regexp(t, `\| c-before \| at the same time +\|( [^|]+\|){6} +1 \|`, string(text))
}

// What does not fit the device ends the sizes, and half of it may fit.
func TestSizesThatDoNotFit(t *testing.T) {
	o := onSoft(t)
	script := `echo '{"ready":true}'; while read what size chunks; do
		if [ $size -gt 67108864 ]; then echo '{"error":"cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2): no"}'; else echo '{"ns":'$size'}'; fi; done`
	o.rivals, o.largest, o.sizes = commands{{ours, []string{"/bin/sh", "-c", script}}}, 1<<30, sizes{2 << 20, 1 << 30, 2 << 30}
	f, err := start(t.Context(), o.rivals, first)
	require.NoError(t, err)
	var all []*result
	require.NoError(t, f.bySize(t.Context(), o, &all))
	require.NoError(t, f.close())
	var got []uint64
	for _, r := range all {
		got = append(got, r.size)
	}
	require.Equal(t, []uint64{2 << 20, 8 << 20, 32 << 20, 64 << 20}, got)
	require.Len(t, f.absent, 1)
	require.Contains(t, f.absent[0], "128 MiB and more: rival gpufd: cuMemCreate")
	require.InDelta(t, 1, exponent(all, ours, bySize), 1e-9)
	require.NoError(t, handoffs(t.Context(), o))
	text, err := os.ReadFile(filepath.Join(o.out, "handoff.md"))
	require.NoError(t, err)
	require.Contains(t, string(text), "\n- 1 GiB and more: rival gpufd: cuMemCreate")
	require.NotContains(t, string(text), "## Handoff of 2 GiB")
}

// What a consumer adds is held against one import of its own kind.
func TestReportCrowds(t *testing.T) {
	r := &report.Report{}
	reportCrowds(r, []crowd{
		{"with a context", true, 4, []fan{{1, []float64{100}, []float64{80}, 0}, {4, []float64{400}, []float64{300}, 0}}, nil},
		{"without a context", false, 8, []fan{{1, []float64{800}, []float64{700}, 0}, {8, []float64{12800}, []float64{900}, 2}}, []string{"16 consumers and more: no time"}},
		{"alone", true, 1, []fan{{1, []float64{100}, []float64{80}, 0}}, nil},
	})
	for i := range r.Bars {
		r.Bars[i].Got = math.Round(r.Bars[i].Got*1e9) / 1e9
	}
	require.Equal(t, []report.Bar{
		{Claim: "what one of 4 consumers with a context adds, against one import by a single one", Limit: 1.2, Got: 1.25},
		{Claim: "exponent of the time over consumers with a context", Limit: 1.1, Got: 1},
		{Claim: "exports by the driver while consumers with a context attach", Limit: 0, Got: 0},
		{Claim: "what one of 8 consumers without a context adds, against one import by a single one", Limit: 1.2, Got: 2.448979592},
		{Claim: "exponent of the time over consumers without a context", Limit: 1.1, Got: 1.333333333},
		{Claim: "exports by the driver while consumers without a context attach", Limit: 0, Got: 2},
	}, r.Bars[:6])
	require.False(t, r.Bars[4].Met())
	require.True(t, math.IsNaN(r.Bars[6].Got), "not measured")
	require.True(t, math.IsNaN(r.Bars[7].Got), "one point has no exponent")
	require.Equal(t, [][]string{{"1", "100 ns", "", "80.0 ns"}, {"4", "400 ns", "100 ns", "300 ns"}, {"exponent", "1.00"}}, r.Tables[0].Rows)
	require.Contains(t, r.Tables[1].Text, "- 16 consumers and more: no time\n")
	require.Equal(t, []string{"with a context", "without a context", "alone"}, []string{r.Charts[0].Series[0].Name, r.Charts[0].Series[1].Name, r.Charts[0].Series[2].Name})
	require.Equal(t, []float64{1, 8}, r.Charts[0].Series[1].X)
}

// Steps are in the order in which they happen, whoever has them.
func TestParts(t *testing.T) {
	p := point{granularity, 1, first}
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
	require.Error(t, handoffs(t.Context(), o))
	require.Error(t, growth(t.Context(), o))
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
		{"-rival", "a=/bin/false", "-growth", "-largest", "1MiB"}, {"-rival", "a=/bin/false", "more"},
	} {
		var stdout, stderr strings.Builder
		require.Equal(t, cli.ExitUsage, run(args, &stdout, &stderr), args)
		require.Equal(t, 1, strings.Count(stderr.String(), "\n"), stderr.String())
	}
	var stdout, stderr strings.Builder
	require.Equal(t, cli.ExitFailed, run([]string{"-rival", "a=/bin/false", "-out", "/dev/null/here"}, &stdout, &stderr))
	require.Contains(t, stderr.String(), "/dev/null", "before anything is measured")
}

// Where two rivals differ is in three legs that add up, and what their processes did is
// counted.
func TestWhy(t *testing.T) {
	o := onSoft(t)
	o.sizes = sizes{2 << 20}
	soft := o.rivals[0].argv
	o.rivals = commands{{cBefore, append(slices.Clone(soft), "-mode", "before")}, {oursBefore, append(slices.Clone(soft), "-mode", "before")},
		{"absent", []string{"/bin/false"}}}
	require.NoError(t, why(t.Context(), o))
	text, err := os.ReadFile(filepath.Join(o.out, "why.md"))
	require.NoError(t, err)
	for _, want := range []string{
		"- **gpufd-before**: package share.\n", "\n- rival absent: it ended: exit status 1\n", "## 2 MiB, first of a turn", "## Processes, for each handoff",
	} {
		require.Contains(t, string(text), want)
	}
	require.Regexp(t, `\| c-before +\|[^|]+\| +\+0\.0 \| +\|([^|–]+\|){9} +3 \|`, string(text), "every leg was seen")
	require.Regexp(t, `\| gpufd-before \| consumer \| +\d+ \| +\d+ \| +[1-9]`, string(text), "it has run")
	require.FileExists(t, filepath.Join(o.out, "why.csv"))
}

func TestLegs(t *testing.T) {
	r := &result{ns: []float64{100}, steps: []step{
		{"consumer", "receive", []float64{30}, []float64{1}}, {"producer", "reply", []float64{80}, []float64{20}},
	}}
	require.Equal(t, [3][]float64{{30}, {50}, {20}}, r.legs())
	r.ns = append(r.ns, 100)
	require.Equal(t, [3][]float64{}, r.legs(), "a handoff did not tell")
}
