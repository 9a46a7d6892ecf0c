package report

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// markdown writes the report for people.
func (r *Report) markdown(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s\n", r.Name)
	paragraph(&b, r.Text)
	r.Machine.markdown(&b)
	for _, t := range r.Tables {
		t.markdown(&b)
	}
	if len(r.Ratios) > 0 {
		ratioTable(r.Ratios).markdown(&b)
	}
	_, err := w.Write(b.Bytes())
	return err
}

func paragraph(b *bytes.Buffer, text string) {
	if text = strings.TrimSpace(text); text != "" {
		fmt.Fprintf(b, "\n%s\n", text)
	}
}

func (m Machine) markdown(b *bytes.Buffer) {
	Table{
		Title: "Machine",
		Head:  []string{"what", "which"},
		Rows: [][]string{
			{"CPU", fmt.Sprintf("%s, %s", m.CPU, plural(m.Cores, "core"))},
			{"GPU", m.GPU},
			{"driver", m.Driver},
			{"kernel", m.Kernel},
			{"Go", m.Go},
			{"commit", m.Commit},
			{"date", m.Date},
		},
	}.markdown(b)
	fmt.Fprintf(b, "\nMade by\n\n```sh\n%s\n```\n", m.Command)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// ratioTable is the table of ratios.
func ratioTable(rs []Ratio) Table {
	t := Table{Title: "Ratios", Head: []string{"of", "measured"}}
	for _, r := range rs {
		t.Rows = append(t.Rows, []string{r.What, Times(r.Got)})
	}
	return t
}

// markdown writes the table with its columns as wide as their widest cell;
// columns of numbers are aligned to the right.
func (t Table) markdown(b *bytes.Buffer) {
	if t.Title != "" {
		fmt.Fprintf(b, "\n## %s\n", t.Title)
	}
	paragraph(b, t.Text)
	if len(t.Head) == 0 {
		return
	}
	b.WriteByte('\n')
	b.WriteString(t.grid())
}

func (t Table) grid() string {
	widths, right := make([]int, len(t.Head)), make([]bool, len(t.Head))
	rows := append([][]string{t.Head}, t.Rows...)
	for i := range t.Head {
		widths[i], right[i] = 3, t.numeric(i)
		for _, row := range rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell(row, i)))
		}
	}
	var b strings.Builder
	for n, row := range rows {
		for i, width := range widths {
			text := cell(row, i)
			space := strings.Repeat(" ", width-utf8.RuneCountInString(text))
			if right[i] {
				text, space = space, text
			}
			fmt.Fprintf(&b, "| %s%s ", text, space)
		}
		b.WriteString("|\n")
		if n == 0 {
			b.WriteString(rule(widths, right))
		}
	}
	return b.String()
}

// rule is the line between head and rows.
func rule(widths []int, right []bool) string {
	var b strings.Builder
	for i, width := range widths {
		dashes := strings.Repeat("-", width)
		if right[i] {
			dashes = dashes[1:] + ":"
		}
		fmt.Fprintf(&b, "| %s ", dashes)
	}
	return b.String() + "|\n"
}

// cell is the text of column i, which a short row lacks, as a table can hold
// it.
func cell(row []string, i int) string {
	if i >= len(row) {
		return ""
	}
	return strings.NewReplacer("|", `\|`, "\n", " ").Replace(row[i])
}

// numeric reports whether every cell of column i begins like a number, or is
// empty.
func (t Table) numeric(i int) bool {
	any := false
	for _, row := range t.Rows {
		text := strings.TrimLeft(cell(row, i), "+-−<>≤≥*")
		first, _ := utf8.DecodeRuneInString(text)
		if text == "" || text == none {
			continue
		}
		if !unicode.IsDigit(first) {
			return false
		}
		any = true
	}
	return any
}
