// Package faults checks that each fault of docs/faults.md has a test.
package faults

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	row = regexp.MustCompile(`(?m)^\| (\d+) \| `)
	// Such as TestFault5and6_ConsumerDies, a subtest or comment with "fault 19 and 20: …", or //fault:rows 2 3.
	named   = regexp.MustCompile(`(?m)^func Test\w*Fault(\d\w*?)_|\bfault (\d+(?:(?:, | and | to )\d+)*)|^//fault:rows ([\d ]+)$`)
	numbers = regexp.MustCompile(`(\d+)(?: ?to ?(\d+))?`)
)

func TestEachFaultHasATest(t *testing.T) {
	const root = "../.."
	page, err := os.ReadFile(filepath.Join(root, "docs", "faults.md"))
	if os.IsNotExist(err) {
		t.Skip("takes the sources")
	}
	require.NoError(t, err)
	tested := map[int]bool{}
	require.NoError(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") || filepath.Base(path) == "faults_test.go" {
			return err
		}
		source, err := os.ReadFile(path)
		for _, m := range named.FindAllStringSubmatch(string(source), -1) {
			for _, n := range numbers.FindAllStringSubmatch(m[1]+m[2]+m[3], -1) {
				first, _ := strconv.Atoi(n[1])
				last, _ := strconv.Atoi(n[2]) // 0 where it is one
				for tested[first] = true; first < last; first++ {
					tested[first+1] = true
				}
			}
		}
		return err
	}))
	rows := row.FindAllStringSubmatch(string(page), -1)
	require.Greater(t, len(rows), 90, "rows of docs/faults.md")
	for _, r := range rows {
		n, _ := strconv.Atoi(r[1])
		require.True(t, tested[n], "no test has fault %d in its name", n)
	}
}
