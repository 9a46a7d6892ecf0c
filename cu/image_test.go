package cu

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// An image that ends within its first header is not given to the driver, which
// would read on.
func TestHeadersThatAreCutOff(t *testing.T) {
	for _, magic := range []uint32{elfMagic, fatbinMagic, wrapperMagic} {
		header := binary.LittleEndian.AppendUint32(nil, magic)
		for len(header) < 16 {
			require.False(t, isWhole(header), "%x", header)
			header = append(header, 0)
		}
	}
	for _, text := range []string{"", ".", ".version"} {
		require.True(t, isWhole([]byte(text)))
	}
}
