package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/internal/advice"
)

// noProof lists the causes that no test of this package shows alone, with the reason.
var noProof = map[string]string{
	"libcuda":       "its rows name causes of their own",
	"context":       "its failures have causes of their own",
	"memory-fd":     "its failures have causes of their own",
	"legacy-memory": "its failures have causes of their own",
	"legacy-event":  "its failures have causes of their own",
	"net-common":    "it is UNKNOWN at worst",
	"memory-with":   "its failures have causes of their own",
	"torch-own":     "an error of PyTorch, seen on an H200",
	"shm-gone":      "an error of the system",
}

// TestEveryCauseIsShown: the tests of this package name each cause, unless it is said to be not tried.
func TestEveryCauseIsShown(t *testing.T) {
	t.Parallel()
	files := ok(filepath.Glob("*_test.go"))(t)
	if len(files) == 0 {
		t.Skip("needs the sources")
	}
	var sources strings.Builder
	for _, f := range files {
		if f == "everycause_test.go" || f == "explain_test.go" {
			continue
		}
		b := ok(os.ReadFile(f))(t)
		sources.Write(b)
	}
	for _, c := range advice.Causes {
		if c.Untried == "" && noProof[c.ID] == "" {
			require.Contains(t, sources.String(), `"`+c.ID+`"`)
		}
	}
}
