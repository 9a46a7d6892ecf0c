package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// longest is how many characters the cell of a table may have: longer text is a paragraph.
const longest = 200

// auditors are the pages with evidence, which may have longer cells, beside all *-evidence.md.
var auditors = []string{"docs/hardware.md", "docs/benchmarks"}

// longCells names the cells of a page's tables that are too long.
func longCells(page, text string) (found []string) {
	code := false
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "```") {
			code = !code
		}
		if code || !strings.HasPrefix(line, "|") {
			continue
		}
		for _, cell := range strings.Split(strings.ReplaceAll(line, `\|`, "¦"), "|") {
			if n := utf8.RuneCountInString(strings.TrimSpace(cell)); n > longest {
				found = append(found, fmt.Sprintf("%s:%d: %d characters", page, i+1, n))
			}
		}
	}
	return found
}

// TestCellsAreShort: a table can be read.
func TestCellsAreShort(t *testing.T) {
	const root = "../.."
	var found []string
	for _, from := range []string{"docs", "README.md", "CONTRIBUTING.md", "python", "bench", "examples"} {
		err := filepath.WalkDir(filepath.Join(root, from), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			page, err := filepath.Rel(root, path)
			switch {
			case slices.Contains(auditors, page) && d.IsDir():
				return fs.SkipDir
			case err != nil || d.IsDir() || slices.Contains(auditors, page) || strings.HasSuffix(page, "-evidence.md") || filepath.Ext(path) != ".md":
				return err
			}
			text, err := os.ReadFile(path)
			found = append(found, longCells(page, string(text))...)
			return err
		})
		require.NoError(t, err)
	}
	require.Empty(t, found, "cells of tables of more than %d characters: make them paragraphs", longest)
}

func TestLongCells(t *testing.T) {
	long := strings.Repeat("ü", longest)
	require.Empty(t, longCells("p", "| a | "+long+" |\n"+long+long+"\n```\n| "+long+"x |\n```\n| "+long[:longest]+`\|`+" |"))
	require.Equal(t, []string{"p:2: 201 characters"}, longCells("p", "# T\n| a | "+long+"x | b |"))
}
