package corpus

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const document = "../../docs/ptx.md"

var rewrite = flag.Bool("update", false, "rewrite the counts of "+document)

// The document counts what is compared here.
func TestDocument(t *testing.T) {
	text := ok(os.ReadFile(document))(t)
	const begin, end = "<!-- corpus -->\n", "<!-- end -->\n"
	before, rest, ok := strings.Cut(string(text), begin)
	require.True(t, ok)
	_, after, ok := strings.Cut(rest, end)
	require.True(t, ok)
	want := before + begin + counts(t) + end + after
	if *rewrite {
		require.NoError(t, os.WriteFile(document, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(text), "docs/ptx.md is old: go test ./tests/corpus -run TestDocument -update")
}

// counts are of what TestCorpus and TestRandom want to be equal.
func counts(t *testing.T) string {
	list := ok(cases())(t)
	var exact, near, astray int
	for _, k := range list {
		switch {
		case k.how == "float":
			near++
		case k.astray():
			astray++
		default:
			exact++
		}
	}
	known := randomRecorded(t)
	var agreed, others int
	for seed, r := range known {
		switch {
		case seed == unlike:
			others++
		case r.agreed(seed):
			agreed++
		}
	}
	return fmt.Sprintf(`| kernels | |
|---|---|
| of CUDA C, optimised and for debugging | %d |
| of these: equal to the GPU's bits | %d |
| within %d ulp, for approximations in them | %d |
| equal to the optimised one's bits, where the GPU goes astray | %d |
| random, equal to the GPU's bits | %d |
| random, not equal | %d |
| random, equal to its bits without optimisation, where the optimiser goes astray | %d |
`, len(list), exact, tolerance, near, astray, agreed, others, len(known)-agreed-others)
}
