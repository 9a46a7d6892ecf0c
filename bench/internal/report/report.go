// Package report writes what a benchmark measured: its samples as CSV, tables
// and bars as Markdown, plots as SVG.
package report

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// A Report is what one benchmark program has to say.
type Report struct {
	Name    string // of the files, without an ending
	Title   string
	Text    string // Markdown, under the title
	Machine Machine
	Raw     Table // for the CSV: every sample, unless its Text says what is in it, "Maxima are in"
	Tables  []Table
	Bars    []Bar
	Charts  []Chart
}

// A Table is rows under a head.
type Table struct {
	Name  string // for the program that makes it; not printed
	Title string
	Text  string // Markdown, between title and table
	Head  []string
	Rows  [][]string
}

// A Bar is a claim that the measurement has to meet: that Got is at most
// Limit. A Got that is not a number was not measured.
type Bar struct {
	Claim      string
	Limit, Got float64
}

// Met reports whether b was measured and holds.
func (b Bar) Met() bool { return b.Got <= b.Limit }

// Write writes Name.csv, Name.md and Name-CHART.svg for each chart into dir,
// which it makes if need be.
func (r *Report) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := writeFile(filepath.Join(dir, r.Name+".csv"), r.csv); err != nil {
		return err
	}
	if err := writeFile(filepath.Join(dir, r.Name+".md"), r.markdown); err != nil {
		return err
	}
	for _, c := range r.Charts {
		if err := writeFile(filepath.Join(dir, r.chartFile(c)), c.svg); err != nil {
			return fmt.Errorf("chart %s: %w", c.Name, err)
		}
	}
	return nil
}

func (r *Report) chartFile(c Chart) string { return r.Name + "-" + c.Name + ".svg" }

// csv writes the samples.
func (r *Report) csv(w io.Writer) error {
	out := csv.NewWriter(w)
	if err := out.Write(r.Raw.Head); err != nil {
		return err
	}
	return out.WriteAll(r.Raw.Rows)
}

// writeFile has write fill the file at path, whose former content stays until
// all of the new one is there.
func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	err = errors.Join(write(f), f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
