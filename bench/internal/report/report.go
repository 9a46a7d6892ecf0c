// Package report writes the results of a benchmark: its samples as CSV, and tables for people.
package report

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
)

// A Report is the result of one benchmark program.
type Report struct {
	Name    string // of the file, without an ending
	Text    string // what is measured, and of the rivals
	Machine Machine
	Raw     Table // for the CSV: every sample, or their quantiles
	Tables  []Table
}

// A Table is rows under a head.
type Table struct {
	Title string
	Text  string // Markdown, between title and table
	Head  []string
	Rows  [][]string
}

// Write prints the report as Markdown to out and, unless dir is empty, writes Name.csv into dir, which it
// makes if need be.
func (r *Report) Write(dir string, out io.Writer) error {
	if err := r.markdown(out); err != nil || dir == "" {
		return err
	}
	var samples bytes.Buffer
	if err := csv.NewWriter(&samples).WriteAll(append([][]string{r.Raw.Head}, r.Raw.Rows...)); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, r.Name+".csv"), samples.Bytes(), 0o644)
}

// markdown writes the report for people.
func (r *Report) markdown(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s\n\n%s\n", r.Name, strings.TrimSpace(r.Text))
	r.Machine.table().markdown(&b)
	fmt.Fprintf(&b, "\nMade by\n\n```sh\n%s\n```\n", r.Machine.Command)
	for _, t := range r.Tables {
		t.markdown(&b)
	}
	_, err := w.Write(b.Bytes())
	return err
}

// markdown writes the table with its columns as wide as their widest cell.
func (t Table) markdown(b *bytes.Buffer) {
	fmt.Fprintf(b, "\n## %s\n\n", t.Title)
	if t.Text != "" {
		fmt.Fprintf(b, "%s\n\n", t.Text)
	}
	w := tabwriter.NewWriter(b, 0, 0, 1, ' ', 0)
	fmt.Fprintf(w, "| %s\t|\n", strings.Join(t.Head, "\t| "))
	fmt.Fprintf(w, "%s|\n", strings.Repeat("| ---\t", len(t.Head)))
	for _, row := range t.Rows {
		fmt.Fprintf(w, "| %s\t|\n", strings.Join(row, "\t| "))
	}
	_ = w.Flush() // to memory
}
