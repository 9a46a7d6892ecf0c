package report

import (
	"bytes"
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
			Rows: [][]string{{"2 MiB", "ours", "97.1 µs"}, {"512 MiB", "C", "–"}},
		}},
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
			"| size    | who  | p50     |\n" +
			"| ---     | ---  | ---     |\n" +
			"| 2 MiB   | ours | 97.1 µs |\n" +
			"| 512 MiB | C    | –       |\n",
	} {
		require.Contains(t, out.String(), part)
	}
}
