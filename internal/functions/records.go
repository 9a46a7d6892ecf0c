package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// recordOf returns the path of the list of functions that tests have called on a
// kind of driver.
func recordOf(kind string) string { return filepath.Join(records, kind+".txt") }

// readRecords joins the files that test processes wrote, one symbol a line.
func readRecords(dir string) ([]string, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s: no test has recorded anything", dir)
	}
	var all []string
	for _, name := range names {
		symbols, err := readLines(name)
		if err != nil {
			return nil, err
		}
		all = append(all, symbols...)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// readLines reads a list. A missing one is empty.
func readLines(path string) ([]string, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []string
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		if line := strings.TrimSpace(s.Text()); line != "" {
			list = append(list, line)
		}
	}
	return list, nil
}

func lines(list []string) []byte { return []byte(strings.Join(list, "\n") + "\n") }
