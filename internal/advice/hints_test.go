package advice

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/require"
)

// Neither driver's errors send anybody to what only the other one has.
func TestHintsAreTheDriversOwn(t *testing.T) {
	for _, driver := range []struct {
		own      map[Call]string
		notThere string
	}{
		{onlySoft, "nvidia|dmesg|MPS|libcuda|newer driver|compute capability"},
		{onlyCUDA, "GPUFD_SOFT|software driver"},
	} {
		all := maps.Clone(both)
		maps.Copy(all, driver.own)
		for at, hint := range all {
			require.NotEmpty(t, hint)
			require.NotRegexp(t, driver.notThere, hint, at)
			_, general := both[at]
			_, own := driver.own[at]
			require.False(t, general && own, "%v has two hints", at)
		}
	}
}
