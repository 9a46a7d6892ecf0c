package channel

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
)

// Every interleaving of a writer and two readers with three slots (or as many as two such readers take), whatever their policies, is
// right, also if one of them is killed at any step: of two pairs here, of all in the soak.
//
//fault:rows 93 94
func TestModel(t *testing.T) {
	slow, soak := cutest.Emulated() || cutest.RaceDetector, os.Getenv("GPUFD_SOAK") == "1"
	for i, a := range policies {
		for _, b := range policies[i:] {
			if slow && (a != Block || b != DropNewest) {
				continue // one pair shows that it runs; the states are the same everywhere
			}
			t.Run(fmt.Sprint(a, " and ", b), func(t *testing.T) {
				m := model{policies: [modelReaders]Policy{a, b}, frames: 4, kills: 1}
				killed := a == Block && b == DropNewest || a == DropOldest && b == Latest
				if !killed && !soak {
					m.kills = 0 // a fifth of the states, and of the memory; GPUFD_SOAK=1 walks through all
				}
				m.spares = b == Latest && !soak
				if least := map[Policy]uint8{Latest: 4, DropNewest: 5}[a]; b == Latest && least > 0 {
					m.slots, m.frames = least, least+1 // the last frame comes where the first was
				}
				if a == DropNewest && b == Latest {
					if m.kills = 0; !soak {
						t.Skip("5,923,518 states, which take a gigabyte; GPUFD_SOAK=1 walks through them, without kills")
					}
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
		"no retirement":                {plant{noRetire: true}, DropOldest, "has the bytes of"},
		"a number before its entry":    {plant{earlyPublish: true}, Block, "is not whole"},
		"a stamp is not looked at":     {plant{noSecondLook: true}, DropOldest, "frame"},
		"a held slot is taken":         {plant{noBlock: true}, Block, ""},
		"too many frames are kept":     {plant{alwaysRoom: true}, DropNewest, "readers that drop"},
		"a dead reader is kept":        {plant{noCountOut: true}, Block, "no way on"},
		"an unfinished frame":          {plant{takesAll: true}, Block, "is not whole"},
		"a frame is looked for again":  {plant{noSkip: true}, DropOldest, "no way on"},
		"a frame is forgotten":         {plant{forgets: true}, Block, "the last whole one"},
		"a number is assumed":          {plant{assumes: true}, Block, "nonsense"},
		"passed by and not noticed":    {plant{notWhole: true}, DropOldest, "has the bytes of"},
		"claims are not looked at":     {plant{noClaims: true}, Latest, "latest: frame"},
		"a look, and then the mark":    {plant{looksFirst: true}, Latest, "latest: frame"},
		"a claimed frame is forgotten": {plant{forgets: true}, Latest, "the last whole one"},
		"a claim, and no look":         {plant{noLookAgain: true}, Latest, "latest: frame"},
	} {
		t.Run(name, func(t *testing.T) {
			m := model{plant: c.plant, policies: [modelReaders]Policy{c.policy, c.policy}, frames: 4}
			if c.noCountOut || c.takesAll || c.noSkip || c.forgets {
				m.kills = 1 // the others need none
			}
			if c.policy == Latest { // with three slots there is room for one
				m.policies[1], m.frames = DropOldest, 5
			}
			if c.noSkip { // as few states as will do
				m.spares, m.policies[1] = true, DropNewest
			}
			require.ErrorContains(t, errOf(m.walk()), c.want)
		})
	}
}
