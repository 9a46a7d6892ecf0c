// Package report writes the results of a benchmark: its samples as CSV, and tables for people.
package report

import (
	"encoding/csv"
	"errors"
	"io"
	"os"
	"path/filepath"
)

// A Report is the result of one benchmark program.
type Report struct {
	Name    string // of the file, without an ending
	Text    string // what is measured, and of the rivals
	Machine Machine
	Raw     Table // for the CSV: every sample, or their quantiles
	Tables  []Table
	Ratios  []Ratio
}

// A Table is rows under a head.
type Table struct {
	Name  string // for the program that makes it; not printed
	Title string
	Text  string // Markdown, between title and table
	Head  []string
	Rows  [][]string
}

// A Ratio is ours against a rival's in the same run, or not a number where one of them is missing.
type Ratio struct {
	What string
	Got  float64
}

// Write prints the report as Markdown to out and, unless dir is empty, writes Name.csv into dir, which it
// makes if need be.
func (r *Report) Write(dir string, out io.Writer) error {
	if err := r.markdown(out); err != nil || dir == "" {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, r.Name+".csv"), r.csv)
}

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
