package wire

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/gpumem"
)

// A list of any length is told in records of no more than 4,096 bytes, each but the
// last as full as it can be, and comes out as it was.
func TestListsOfAnyLength(t *testing.T) {
	for _, n := range []int{0, 1, 2, 13, 14, 100, 4096} {
		var all, got []Listing
		for i := range n {
			l := fullListing()
			l.Name = fmt.Sprintf("%d %s", i, l.Name)[:1+i%MaxName]
			all = append(all, l)
		}
		left, records := n, Lists(all)
		for i, m := range records {
			record := Encode(m)
			require.LessOrEqual(t, len(record), maxListed)
			if i+1 < len(records) {
				next := Encode(Listed{Offers: records[i+1].Offers[:1]})
				require.Greater(t, len(record)+len(next)-headerSize-8, maxListed, "the next offer would have fitted")
			}
			decoded, err := Decode(record)
			require.NoError(t, err)
			require.NoError(t, decoded.(Listed).Continues(left))
			left = m.Left
			got = append(got, decoded.(Listed).Offers...)
		}
		require.Zero(t, left)
		require.Equal(t, all, got)
	}
}

// The records of a list add up.
func TestRecordsOfAListAddUp(t *testing.T) {
	one := []Listing{{Name: "n", Access: gpumem.ReadOnly}}
	require.NoError(t, Listed{Left: 2, Offers: one}.Continues(3))
	for _, left := range []int{0, 2, 4, math.MaxUint32} {
		require.ErrorIs(t, Listed{Left: 2, Offers: one}.Continues(left), ErrMalformed, left)
	}
}
