package channel

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
)

var allPolicies = []Policy{Block, DropOldest, DropNewest}

// Every interleaving of a writer and two readers with three slots, whatever their policies, is
// right, also if one of them is killed at any step: of one pair here, of all in the soak.
//
//fault:rows 93 94
func TestModel(t *testing.T) {
	slow, soak := cutest.Emulated() || cutest.RaceDetector, os.Getenv("GPUFD_SOAK") == "1"
	for i, a := range allPolicies {
		for _, b := range allPolicies[i:] {
			if slow && (a != Block || b != DropNewest) {
				continue // one pair shows that it runs; the states are the same everywhere
			}
			t.Run(fmt.Sprint(a, " and ", b), func(t *testing.T) {
				m := model{policies: [modelReaders]Policy{a, b}, frames: 4, kills: 1}
				if (a != Block || b != DropNewest) && !soak {
					m.kills = 0 // a fifth of the states, and of the memory; GPUFD_SOAK=1 walks through all
				}
				states := ok(m.walk())(t)
				t.Logf("%d states", states)
				require.Greater(t, states, 1000)
			})
		}
	}
}

// A fault in the protocol is found.
func TestModelFindsPlantedFaults(t *testing.T) {
	if cutest.Emulated() || cutest.RaceDetector {
		t.Skip("the states are the same everywhere, and this takes long here")
	}
	for name, c := range map[string]struct {
		plant
		policy Policy
		want   string
	}{
		"no retirement":               {plant{noRetire: true}, DropOldest, "has the bytes of"},
		"a number before its entry":   {plant{earlyPublish: true}, Block, "is not whole"},
		"a stamp is not looked at":    {plant{noSecondLook: true}, DropOldest, "frame"},
		"a held slot is taken":        {plant{noBlock: true}, Block, ""},
		"too many frames are kept":    {plant{alwaysRoom: true}, DropNewest, "readers that drop"},
		"a dead reader is kept":       {plant{noCountOut: true}, Block, "no way on"},
		"an unfinished frame":         {plant{takesAll: true}, Block, "is not whole"},
		"a frame is looked for again": {plant{noSkip: true}, DropOldest, "no way on"},
		"a frame is forgotten":        {plant{forgets: true}, Block, "the last whole one"},
		"a number is assumed":         {plant{assumes: true}, Block, "nonsense"},
		"passed by and not noticed":   {plant{notWhole: true}, DropOldest, "has the bytes of"},
	} {
		t.Run(name, func(t *testing.T) {
			m := model{plant: c.plant, policies: [modelReaders]Policy{c.policy, c.policy}, frames: 4}
			if c.noCountOut || c.takesAll || c.noSkip || c.forgets {
				m.kills = 1 // the others need none
			}
			if c.noSkip { // as few states as will do
				m.spares, m.policies[1] = true, DropNewest
			}
			require.ErrorContains(t, errOf(m.walk()), c.want)
		})
	}
}
