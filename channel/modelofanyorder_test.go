package channel

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
)

// Every interleaving of a writer, its stream and two readers that give slots back in any order is right, also if one side
// is killed at any step; and so is that of one slot, which readers keep until it is wanted.
//
//fault:rows 93 94
func TestModelOfAnyOrder(t *testing.T) {
	slow, soak := cutest.Emulated() || cutest.RaceDetector, os.Getenv("GPUFD_SOAK") == "1"
	for name, m := range map[string]anyModel{
		"three slots":             {slots: 3, frames: 4, keeps: 2},
		"three slots, one reader": {slots: 3, frames: 5, keeps: 2, kills: 1, alone: true},
		"one slot":                {slots: 1, frames: 3, keeps: 1, kills: 1, untilWanted: true},
	} {
		t.Run(name, func(t *testing.T) {
			if slow && m.slots > 1 {
				t.Skip("one slot shows that it runs; the states are the same everywhere")
			}
			if soak { // 3,522,455 states with three slots, which take a gigabyte
				m.kills = 1
			}
			states := ok(m.walk())(t)
			t.Logf("%d states", states)
			require.Greater(t, states, 1000)
		})
	}
}

// A fault in what the two sides do is found.
func TestModelOfAnyOrderFindsPlantedFaults(t *testing.T) {
	if cutest.Emulated() || cutest.RaceDetector {
		t.Skip("the states are the same everywhere, and this takes long here")
	}
	for name, c := range map[string]struct {
		anyPlant
		want string
	}{
		"one number for all slots":         {anyPlant{anyWord: true}, "its slot has the bytes of"},
		"a stamp before the bytes":         {anyPlant{earlyStamp: true}, "its slot has the bytes of"},
		"a number before its stamp":        {anyPlant{numberLast: true}, "is not whole"},
		"a look at a later entry":          {anyPlant{looksAgain: true}, "its entry is another's"},
		"an entry before its slot":         {anyPlant{noSlot: true}, "was expected"},
		"nobody says that it waits":        {anyPlant{silent: true}, "no way on"},
		"an unfinished frame":              {anyPlant{takesAll: true}, "is not whole"},
		"a dead reader is kept":            {anyPlant{noCountOut: true}, "no way on"},
		"a slot that is to be written":     {anyPlant{early: true}, "has still to write"},
		"what was given back is not known": {anyPlant{forgets: true}, "nonsense"},
	} {
		t.Run(name, func(t *testing.T) {
			m := anyModel{anyPlant: c.anyPlant, slots: 3, frames: 5, keeps: 2}
			if c.takesAll || c.noCountOut || c.early {
				m.kills = 1
			}
			if c.silent || c.noCountOut { // as few states as will do
				m.slots, m.keeps, m.untilWanted = 1, 1, true
			}
			require.ErrorContains(t, errOf(m.walk()), c.want)
		})
	}
}
