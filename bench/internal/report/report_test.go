package report

import (
	"bytes"
	"encoding/csv"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// example has a chart of each kind.
func example() *Report {
	sizes := []float64{2 << 20, 64 << 20, 512 << 20, 8 << 30, 64 << 30}
	return &Report{
		Name: "example", Title: "An example", Text: "What was measured.",
		Machine: Machine{CPU: "A CPU", Cores: 2, GPU: "none", Driver: "none", Command: "example -n 3"},
		Raw:     Table{Head: []string{"size", "ns"}, Rows: [][]string{{"2", "1,5"}, {"64", "20"}}},
		Tables: []Table{{
			Name: "sizes", Title: "By size", Text: "Each p50.",
			Head: []string{"size", "who", "p50"},
			Rows: [][]string{{"2 MiB", "ours", "97.1 µs"}, {"512 MiB", "C|C++", "–"}},
		}},
		Bars: []Bar{{"ours / C", 1.15, 1.0749}, {"launch", 1.10, 1.2}, {"fan-out", 1.2, math.NaN()}},
		Charts: []Chart{
			{
				Name: "size", Title: "Handoff against size", X: "size, bytes", Y: "p50, ns", LogX: true, LogY: true,
				Series: []Series{
					{"ours", sizes, []float64{90e3, 120e3, 400e3, 6e6, 41e6}},
					{"C, export inside", sizes, []float64{80e3, 130e3, 420e3, 5.5e6, 44e6}},
					{"C, export beforehand", sizes, []float64{70e3, 100e3, 390e3, 5e6, 0}},
				},
			},
			{
				Name: "ways", Title: "A crossing", X: "arguments", Y: "median, ns", LogY: true,
				Labels: []string{"0", "4", "11", "out-pointer"},
				Series: []Series{
					{"ours", nil, []float64{27, 29, 36, 29}},
					{"cgo", nil, []float64{22, 22, 24, 26}},
					{"an executor goroutine", nil, []float64{30e3, 31e3, math.NaN(), 30e3}},
				},
			},
		},
	}
}

func write(t *testing.T, r *Report) (read func(name string) string) {
	dir := filepath.Join(t.TempDir(), "made")
	require.NoError(t, r.Write(dir))
	return func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		return string(b)
	}
}

func TestWriteKeepsEverySample(t *testing.T) {
	read := write(t, example())
	rows, err := csv.NewReader(strings.NewReader(read("example.csv"))).ReadAll()
	require.NoError(t, err)
	require.Equal(t, [][]string{{"size", "ns"}, {"2", "1,5"}, {"64", "20"}}, rows)
}

func TestMarkdown(t *testing.T) {
	md := write(t, example())("example.md")
	for _, part := range []string{
		"# An example\n\nWhat was measured.\n",
		"| CPU    | A CPU, 2 cores |\n",
		"```sh\nexample -n 3\n```\n",
		"## By size\n\nEach p50.\n\n" +
			"|    size | who    |     p50 |\n" +
			"| ------: | ------ | ------: |\n" +
			"|   2 MiB | ours   | 97.1 µs |\n" +
			"| 512 MiB | C\\|C++ |       – |\n",
		"| claim    | limit | measured | met          |\n",
		"| ours / C |  1.15 |    1.075 | met          |\n",
		"| launch   |   1.1 |      1.2 | **NOT met**  |\n",
		"| fan-out  |   1.2 |        – | not measured |\n",
		"![A crossing](example-ways.svg)",
		"Every sample is in [example.csv](example.csv).",
	} {
		require.Contains(t, md, part)
	}
	r := example()
	r.Raw.Text = "Maxima are in"
	require.Contains(t, write(t, r)("example.md"), "\nMaxima are in [example.csv](example.csv).\n")
}

// What cannot be written takes nothing away.
func TestAFailedWriteLeavesTheOldFile(t *testing.T) {
	dir := t.TempDir()
	r := example()
	require.NoError(t, r.Write(dir))
	before, err := os.ReadFile(filepath.Join(dir, "example-size.svg"))
	require.NoError(t, err)
	r.Charts[0].Series = nil
	require.ErrorIs(t, r.Write(dir), errNothing)
	after, err := os.ReadFile(filepath.Join(dir, "example-size.svg"))
	require.NoError(t, err)
	require.Equal(t, before, after)
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 4)
}

func TestEqualReportsGiveEqualFiles(t *testing.T) {
	one, other := write(t, example()), write(t, example())
	for _, name := range []string{"example.csv", "example.md", "example-size.svg", "example-ways.svg"} {
		require.Equal(t, one(name), other(name), name)
	}
}

func TestSVGHasTitlesTicksAndLegend(t *testing.T) {
	read := write(t, example())
	for name, texts := range map[string][]string{
		"example-size.svg": {"Handoff against size", ">size<", ">p50<", ">2 MiB<", ">8 GiB<", ">1 ms<", ">C, export inside<"},
		"example-ways.svg": {"A crossing", ">arguments<", ">median<", ">out-pointer<", ">100 ns<", ">10 µs<", ">an executor goroutine<"},
	} {
		svg := read(name)
		for _, text := range texts {
			require.Contains(t, svg, text, name)
		}
		require.NotContains(t, svg, "NaN", name)
		require.NotContains(t, svg, "Inf", name)
	}
}

// Values are over all bars or over none.
func TestValuesOverBars(t *testing.T) {
	values := func(series, labels int) (found int) {
		c := Chart{Name: "bars", Y: "time, ns"}
		for range labels {
			c.Labels = append(c.Labels, "label")
		}
		for i := range series {
			s := Series{Name: "s"}
			for j := range labels {
				s.Y = append(s.Y, []float64{7, 12.3, 45.6}[(i+j)%3])
			}
			c.Series = append(c.Series, s)
		}
		var b bytes.Buffer
		require.NoError(t, c.svg(&b))
		return len(regexp.MustCompile(`>(7|12\.3|45\.6)( ns)?<`).FindAllString(b.String(), -1))
	}
	require.Equal(t, 4, values(2, 2))
	require.Equal(t, 18, values(3, 6), "without units")
	require.Zero(t, values(9, 9), "only the 7s have room")
}

func TestSeriesOfOneColourDiffer(t *testing.T) {
	c := Chart{Name: "lines"}
	for range len(palette) + 1 {
		c.Series = append(c.Series, Series{"s", []float64{1, 2}, []float64{1, 2}})
	}
	var b bytes.Buffer
	require.NoError(t, c.svg(&b))
	require.Equal(t, 2, strings.Count(b.String(), "stroke-dasharray"), "line and legend of the last")
}

func TestAChartOfNothingIsAnError(t *testing.T) {
	for _, c := range []Chart{
		{Name: "empty"},
		{Name: "gaps", LogY: true, Series: []Series{{"s", []float64{1, 2}, []float64{0, math.NaN()}}}},
		{Name: "bars", Labels: []string{"a"}, Series: []Series{{"s", nil, []float64{math.NaN()}}}},
	} {
		require.ErrorIs(t, c.svg(new(bytes.Buffer)), errNothing, c.Name)
		r := Report{Name: "r", Charts: []Chart{c}}
		require.ErrorContains(t, r.Write(t.TempDir()), "chart "+c.Name)
	}
}

func TestOnePointIsDrawn(t *testing.T) {
	for _, log := range []bool{false, true} {
		c := Chart{LogX: log, LogY: log, Series: []Series{{"s", []float64{1}, []float64{1}}}}
		require.NoError(t, c.svg(new(bytes.Buffer)))
	}
}

func TestBarsAreMetAtTheirLimit(t *testing.T) {
	require.True(t, Bar{"", 0, 0}.Met())
	require.False(t, Bar{"", 0, 0.01}.Met())
	require.False(t, Bar{"", 1, math.NaN()}.Met())
}
