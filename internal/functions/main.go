// Functions writes docs/functions.md: for every function of the driver API,
// whether it can be called raw, whether package cu types it, whether the software
// driver has it, and on which drivers a test has called it successfully.
//
//	functions             writes docs/functions.md
//	functions -check      fails if that would change it
//	functions -called DIR KIND   first writes docs/functions/KIND.txt from what tests recorded in DIR
//
// Run it in the module's root.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

const (
	page    = "docs/functions.md"
	records = "docs/functions"
)

func main() {
	check := flag.Bool("check", false, "compare instead of writing")
	called := flag.String("called", "", "directory of what tests recorded (GPUFD_CALLED)")
	flag.Parse()
	if flag.NArg() > 1 || *called == "" && flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "functions: %q is too much; a KIND stands after -called DIR alone\n", flag.Args())
		os.Exit(2)
	}
	if err := run(*check, *called, flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "functions:", err)
		os.Exit(1)
	}
}

func run(check bool, called, kind string) error {
	if called != "" {
		if err := record(check, called, kind); err != nil {
			return err
		}
	}
	t, err := newTable()
	if err != nil {
		return err
	}
	return write(check, page, t.markdown())
}

// record turns what tests recorded into the list for one kind of driver.
func record(check bool, dir, kind string) error {
	if kind != "soft" && kind != "cuda" {
		return fmt.Errorf("-called DIR wants soft or cuda after it, not %q", kind)
	}
	symbols, err := readRecords(dir)
	if err != nil {
		return err
	}
	return write(check, recordOf(kind), lines(symbols))
}

// write writes a file, or compares it.
func write(check bool, path string, content []byte) error {
	if !check {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		return os.WriteFile(path, content, 0o644)
	}
	have, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !bytes.Equal(have, content) {
		return fmt.Errorf("%s is not what it would be made anew (make functions):\n%s", path, difference(have, content))
	}
	return nil
}

// difference shows the first line that differs.
func difference(have, want []byte) string {
	h, w := bytes.Split(have, []byte("\n")), bytes.Split(want, []byte("\n"))
	for i := range min(len(h), len(w)) {
		if !bytes.Equal(h[i], w[i]) {
			return fmt.Sprintf("line %d\n  is    %s\n  would be %s", i+1, h[i], w[i])
		}
	}
	return fmt.Sprintf("%d lines, would be %d", len(h), len(w))
}
