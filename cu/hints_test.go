package cu

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/require"
)

// Neither driver's errors send anybody to what only the other one has.
func TestHintsAreTheDriversOwn(t *testing.T) {
	for _, driver := range []struct {
		own      map[callResult]string
		notThere string
	}{
		{softHints, "nvidia|dmesg|MPS|libcuda|newer driver|compute capability"},
		{cudaHints, "GPUFD_SOFT|software driver"},
	} {
		all := maps.Clone(hints)
		maps.Copy(all, driver.own)
		for at, hint := range all {
			require.NotEmpty(t, hint)
			require.NotRegexp(t, driver.notThere, hint, at)
			_, general := hints[at]
			_, own := driver.own[at]
			require.False(t, general && own, "%v has two hints", at)
		}
	}
}
