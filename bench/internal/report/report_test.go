package report

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func example() *Report {
	return &Report{
		Name: "example", Text: "What was measured.",
		Machine: Machine{CPU: "A CPU", Cores: 2, GPU: "none", Driver: "none", Command: "example -n 3"},
		Raw:     Table{Head: []string{"size", "ns"}, Rows: [][]string{{"2", "1,5"}, {"64", "20"}}},
		Tables: []Table{{
			Title: "By size", Text: "Each p50.",
			Head: []string{"size", "who", "p50"},
			Rows: [][]string{{"2 MiB", "ours", "97.1 µs"}, {"512 MiB", "C|C++", "–"}},
		}},
		Ratios: []Ratio{{"ours / C", 1.0749}, {"fan-out", math.NaN()}},
	}
}

// The samples are in a file, and the rest is printed.
func TestWrite(t *testing.T) {
	dir, out := filepath.Join(t.TempDir(), "made"), new(bytes.Buffer)
	require.NoError(t, example().Write(dir, out))
	samples, err := os.ReadFile(filepath.Join(dir, "example.csv"))
	require.NoError(t, err)
	require.Equal(t, "size,ns\n2,\"1,5\"\n64,20\n", string(samples))
	for _, part := range []string{
		"# example\n\nWhat was measured.\n",
		"| CPU    | A CPU, 2 cores |\n",
		"```sh\nexample -n 3\n```\n",
		"## By size\n\nEach p50.\n\n" +
			"|    size | who    |     p50 |\n" +
			"| ------: | ------ | ------: |\n" +
			"|   2 MiB | ours   | 97.1 µs |\n" +
			"| 512 MiB | C\\|C++ |       – |\n",
		"| ours / C |    1.07× |\n",
		"| fan-out  |        – |\n",
	} {
		require.Contains(t, out.String(), part)
	}
}

// A failed write leaves the old file.
func TestAFailedWriteLeavesTheOldFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "example.csv")
	require.NoError(t, os.Mkdir(path, 0o700))
	require.Error(t, example().Write(dir, new(bytes.Buffer)))
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 1)
}
