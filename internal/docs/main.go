// Docs generates parts of documents: the column of tests in docs/faults-evidence.md from the sources of
// the tests, and the sentence of results in README.md, and the tables of results and bars in
// docs/benchmarks/README.md, from docs/benchmarks.
//
//	docs           writes all of them
//	docs -check    fails if that would change one of them
//
// It runs in the module's root.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
)

func main() {
	check := flag.Bool("check", false, "compare instead of writing")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "docs: unexpected argument %q\n", flag.Arg(0))
		os.Exit(2)
	}
	if err := run(*check); err != nil {
		fmt.Fprintln(os.Stderr, "docs:", err)
		os.Exit(1)
	}
}

func run(check bool) error {
	page, err := os.ReadFile(evidence)
	if err != nil {
		return err
	}
	if page, err = withTests(page, "."); err != nil {
		return err
	}
	if err := write(check, evidence, page); err != nil {
		return err
	}
	for _, page := range resultPages {
		text, err := os.ReadFile(page.path)
		if err != nil {
			return err
		}
		rows, err := page.rows("docs/benchmarks")
		if err != nil {
			return err
		}
		if text, err = insert(page.path, text, rows); err != nil {
			return err
		}
		if page.bars {
			if text, err = withBars(page.path, text, "docs/benchmarks"); err != nil {
				return err
			}
		}
		if err := write(check, page.path, text); err != nil {
			return err
		}
	}
	return nil
}

// resultPages are the pages that show results.
var resultPages = []struct {
	path string
	rows func(dir string) (string, error)
	bars bool // it has the table of all bars
}{{"README.md", results, false}, {"docs/benchmarks/README.md", firstResults, true}}

// write writes a file, or compares it.
func write(check bool, path string, content []byte) error {
	if !check {
		return os.WriteFile(path, content, 0o644)
	}
	have, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if line, differs := difference(have, content); differs {
		return fmt.Errorf("%s is stale: run make docs; line %d would be\n%s", path, line+1, nth(content, line))
	}
	return nil
}

// difference finds the first line, from 0, in which a and b differ.
func difference(a, b []byte) (line int, differs bool) {
	if bytes.Equal(a, b) {
		return 0, false
	}
	for ; bytes.Equal(nth(a, line), nth(b, line)); line++ {
	}
	return line, true
}

// nth returns line n of text, from 0, or nil after the last.
func nth(text []byte, n int) []byte {
	lines := bytes.SplitAfter(text, []byte("\n"))
	if n >= len(lines) {
		return nil
	}
	return lines[n]
}
