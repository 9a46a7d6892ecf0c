package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A result is a figure of README.md's sentence, or a row of the table that docs/benchmarks/README.md
// begins with. Its figures are cells of the tables in docs/benchmarks.
type result struct {
	what  string
	file  string   // of docs/benchmarks
	table string   // the heading above the table of figures
	ours  []string // the row, or the row and the column of our figure
	rival [][]string
	names []string // of rivals, for people
	claim string   // the row of the file's bars
}

// chosen are results that README.md and the table show. README.md's sentence has the first two, of
// which one is faster than its rival and one is not.
var chosen = []result{
	{
		what: "hand over 2 MiB, processes asleep", file: "handoff.md", table: "Handoff of 2 MiB, first of a turn",
		ours:  []string{"gpufd", "p50"},
		rival: [][]string{{"c-before", "p50"}, {"c-legacy", "p50"}, {"cupy", "p50"}, {"torch", "p50"}},
		names: []string{"C", "C, legacy IPC", "CuPy", "PyTorch"},
		claim: "p50 of gpufd / c-before, 2 MiB, first of a turn",
	},
	{
		what: "the same, processes awake", file: "handoff.md", table: "Handoff of 2 MiB, next of a turn",
		ours:  []string{"gpufd", "p50"},
		rival: [][]string{{"c-before", "p50"}, {"c-legacy", "p50"}, {"cupy", "p50"}, {"torch", "p50"}},
		names: []string{"C", "C, legacy IPC", "CuPy", "PyTorch"},
		claim: "p50 of gpufd / c-before, 2 MiB, next of a turn",
	},
	{
		what: "call a C function of 4 arguments", file: "crossing.md", table: "One call",
		ours:  []string{"4", "ours", "median"},
		rival: [][]string{{"4", "cgo", "median"}, {"4", "purego.SyscallN", "median"}},
		names: []string{"cgo", "purego"},
		claim: "ours / cgo, 4 arguments",
	},
}

// overview are the results that docs/benchmarks/README.md begins with: one of each kind.
var overview = []result{
	chosen[0],
	{
		what: "load a file of 16 GiB that is in memory", file: "keeper.md", table: "Loading 16GiB",
		ours:  []string{"vmm.Buffer.Load", "median"},
		rival: [][]string{{"safetensors load_file", "median"}},
		names: []string{"safetensors"},
		claim: "loading, of load_file's time: at most a fifth",
	},
	{
		what: "attach to 64 GiB that a keeper keeps", file: "keeper.md", table: "Attaching to 64GiB",
		ours:  []string{"share.Attach", "median"},
		rival: [][]string{{"C, bare calls", "median"}},
		names: []string{"C"},
		claim: "attaching, of the bare calls in C",
	},
	{
		what: "a frame from stream to stream, one reader", file: "channel.md", table: "Stream to stream, one way",
		ours:  []string{"1", "gpufd", "p50"},
		rival: [][]string{{"1", "c", "p50"}},
		names: []string{"C"},
		claim: "stream to stream one way, 1 readers, p50 of C's",
	},
	chosen[2],
}

// results makes README.md's sentence.
func results(dir string) (string, error) {
	var asleep, awake figures
	for i, f := range []*figures{&asleep, &awake} {
		var err error
		if *f, err = chosen[i].figures(dir); err != nil {
			return "", err
		}
	}
	all, err := barsOf(dir)
	if err != nil {
		return "", err
	}
	met := 0
	for _, b := range all {
		if b.verdict == "met" {
			met++
		}
	}
	return fmt.Sprintf("On one H200 gpufd hands 2 MiB from process to process in a median of %s if both were asleep (%s), and in %s if\n"+
		"both were awake (%s); of %d bars that were set before the measurements it meets %d:\n"+
		"[all of them, why the others are not met, and how everything was measured](docs/benchmarks/README.md).\n",
		asleep.ours, asleep.rivals[0], awake.ours, awake.rivals[0], len(all), met), nil
}

// firstResults makes the table of docs/benchmarks/README.md, and says how many bars are met.
func firstResults(dir string) (string, error) {
	table, err := tableOf(dir, overview, "| median | gpufd | rival | ratio | bar | |\n|---|---:|---:|---:|---:|---|\n",
		func(r result, f figures) string {
			return fmt.Sprintf("| [%s](%s) | %s | %s | %s | %s | %s |\n",
				r.what, r.file, f.ours, f.rivals[0], f.measured, f.limit, f.met)
		})
	if err != nil {
		return "", err
	}
	met, err := barsMet(dir, "")
	return table + met, err
}

// tableOf has a row for each result.
func tableOf(dir string, of []result, head string, row func(result, figures) string) (string, error) {
	var b strings.Builder
	b.WriteString(head)
	for _, r := range of {
		f, err := r.figures(dir)
		if err != nil {
			return "", err
		}
		b.WriteString(row(r, f))
	}
	return b.String(), nil
}

// figures are what a row of a table says: ours and the rivals', and the bar.
type figures struct {
	ours                 string
	rivals               []string // with their names
	measured, limit, met string
}

func (r result) figures(dir string) (f figures, err error) {
	text, err := os.ReadFile(filepath.Join(dir, r.file))
	if err != nil {
		return f, err
	}
	table, bars := tableUnder(text, r.table), tableUnder(text, "Bars")
	if f.ours, err = table.cell(r.ours...); err != nil {
		return f, fmt.Errorf("%s, %s: %w", r.file, r.table, err)
	}
	for i, at := range r.rival {
		v, err := table.cell(at...)
		if err != nil {
			return f, fmt.Errorf("%s, %s: %w", r.file, r.table, err)
		}
		f.rivals = append(f.rivals, r.names[i]+" "+v)
	}
	for column, to := range map[string]*string{"measured": &f.measured, "limit": &f.limit, "met": &f.met} {
		if *to, err = bars.cell(r.claim, column); err != nil {
			return f, fmt.Errorf("%s, bars: %w", r.file, err)
		}
	}
	return f, nil
}

// barsMet says of each file that has bars how many are met. Links begin with at.
func barsMet(dir, at string) (string, error) {
	pages, err := filepath.Glob(filepath.Join(dir, "*.md"))
	if err != nil {
		return "", err
	}
	var files []string
	for _, page := range pages {
		if filepath.Base(page) == "README.md" {
			continue // it has those of all
		}
		text, err := os.ReadFile(page)
		if err != nil {
			return "", err
		}
		met, all := 0, 0
		for i, row := range tableUnder(text, "Bars") {
			if i == 0 {
				continue // the heads of the columns
			}
			all++
			if row[len(row)-1] == "met" {
				met++
			}
		}
		if name := filepath.Base(page); all > 0 {
			files = append(files, fmt.Sprintf("[%s](%s%s) %d of %d", strings.TrimSuffix(name, ".md"), at, name, met, all))
		}
	}
	return "\nBars that are met: " + strings.Join(files, ", ") + ".\n", nil
}

// cells are the rows of a table, the heads of its columns first.
type cells [][]string

// tableUnder is the first table under the heading of that name.
func tableUnder(text []byte, heading string) (t cells) {
	_, rest, _ := strings.Cut(string(text), "\n## "+heading+"\n")
	for line := range strings.Lines(rest) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "#"), t != nil && line == "":
			return t
		case strings.HasPrefix(line, "|") && strings.Trim(line, "|-: ") != "":
			var row []string
			for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
				row = append(row, strings.TrimSpace(cell))
			}
			t = append(t, row)
		}
	}
	return t
}

// cell is the cell of the row that begins with the words but the last, in the column
// whose head is the last.
func (t cells) cell(at ...string) (string, error) {
	begins, column := at[:len(at)-1], at[len(at)-1]
	for _, row := range t {
		if len(row) < len(begins) || !slices.Equal(row[:len(begins)], begins) {
			continue
		}
		for i, head := range t[0] {
			if head == column && i < len(row) && row[i] != "" {
				return row[i], nil
			}
		}
	}
	return "", fmt.Errorf("there is no cell %q", at)
}

// The lines of a page between which the results are.
const (
	begin = "<!-- results: made by make docs -->\n"
	end   = "<!-- end of results -->\n"
)

// insert puts the results where a page has them.
func insert(page string, text []byte, rows string) ([]byte, error) {
	return insertBetween(page, text, begin, end, rows)
}

func insertBetween(page string, text []byte, begin, end, rows string) ([]byte, error) {
	before, rest, found := bytes.Cut(text, []byte(begin))
	_, after, closed := bytes.Cut(rest, []byte(end))
	if !found || !closed {
		return nil, fmt.Errorf("%s has no lines %q and %q", page, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return fmt.Appendf(nil, "%s%s%s%s%s", before, begin, rows, end, after), nil
}
