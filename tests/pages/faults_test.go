package pages

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	faultRow   = regexp.MustCompile(`(?m)^\| ([0-9]+) \|`)
	faultNames = regexp.MustCompile(`func TestFault([0-9]+(?:(?:and|to)[0-9]+)*)_|"fault ([0-9]+(?:(?:, | and | to )[0-9]+)*): |(?m)^//fault:rows ([0-9 ]+)$`)
	faultWords = regexp.MustCompile(`[0-9]+|to`)
)

// faultsIn returns the numbers in "50to52" or "19 and 20".
func faultsIn(text string) (all []int) {
	to := false
	for _, word := range faultWords.FindAllString(text, -1) {
		n, err := strconv.Atoi(word)
		if err != nil {
			to = true
			continue
		}
		for to && all[len(all)-1] < n-1 {
			all = append(all, all[len(all)-1]+1)
		}
		all, to = append(all, n), false
	}
	return all
}

// Each fault of docs/faults.md has a test that names it, and each test of a fault has one.
func TestFaultsHaveTests(t *testing.T) {
	require.Equal(t, []int{5, 6, 50, 51, 52}, faultsIn("5and6, 50to52"))
	page, err := os.ReadFile("../../docs/faults.md")
	require.NoError(t, err)
	var listed, tested []int
	for _, m := range faultRow.FindAllStringSubmatch(string(page), -1) {
		listed = append(listed, faultsIn(m[1])...)
	}
	err = filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{"testdata", "bench", "build", ".git"}, d.Name()):
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		source, err := os.ReadFile(path)
		for _, m := range faultNames.FindAllStringSubmatch(string(source), -1) {
			tested = append(tested, faultsIn(m[1]+m[2]+m[3])...)
		}
		return err
	})
	require.NoError(t, err)
	slices.Sort(tested)
	slices.Sort(listed)
	require.Len(t, listed, 102)
	require.Equal(t, listed, slices.Compact(tested))
}
