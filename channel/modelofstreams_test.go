package channel

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
)

// Every interleaving of a writer's stream and two readers' with three slots is right, also if one
// side is killed or cut off at any step. The soak has all steps at which a connection may be cut,
// and hosts that queue two frames ahead while the writer is killed.
func TestModelOfStreams(t *testing.T) {
	models := []streamModel{{faults: 1, ahead: 1}}
	switch {
	case cutest.Emulated() || cutest.RaceDetector:
		models[0].faults = 0 // which shows that it runs; the states are the same everywhere
	case os.Getenv("GPUFD_SOAK") == "1":
		models = []streamModel{{faults: 1, ahead: 1, all: true}, {faults: 1, ahead: 2, not: readerKilled | connectionCut}}
	}
	for _, m := range models {
		states, err := m.walk()
		t.Logf("%d states", states)
		require.NoError(t, err)
		require.Greater(t, states, 1000)
	}
}

// A fault in what streams and hosts do is found.
func TestModelOfStreamsFindsPlantedFaults(t *testing.T) {
	if cutest.Emulated() || cutest.RaceDetector {
		t.Skip("the states are the same everywhere, and this takes long here")
	}
	for name, c := range map[string]struct {
		streamPlant
		want string
	}{
		"waits are not let go":                 {streamPlant{noFree: true}, "no way on"},
		"waits are let go once":                {streamPlant{freeOnce: true}, "no way on"},
		"a freed frame is good":                {streamPlant{goodAnyway: true}, "has read another"},
		"a frame is checked while it is freed": {streamPlant{checkBetween: true}, "has read another"},
		"released before it is read":           {streamPlant{earlyRelease: true}, "has read another"},
		"a slot is not waited for":             {streamPlant{noWait: true}, "has read another"},
		"a number before its entry":            {streamPlant{noMetaFirst: true}, "has read another"},
		"a number before its bytes":            {streamPlant{earlyPublish: true}, "has read another"},
		"a cursor is let go of early":          {streamPlant{letGoEarly: true}, "let go of"},
		"a dropped reader is told late":        {streamPlant{lateState: true}, "has read another"},
		"a dead reader is kept":                {streamPlant{noCountOut: true}, "no way on"},
	} {
		t.Run(name, func(t *testing.T) {
			m := streamModel{streamPlant: c.streamPlant, faults: 1, ahead: 1, not: writerKilled | connectionCut}
			switch { // as few states as will do
			case c.lateState:
				m.not = writerKilled | readerKilled
			case c.checkBetween, c.goodAnyway:
				m.not = readerKilled | connectionCut
			case c.freeOnce:
				m.not, m.ahead = readerKilled|connectionCut, 2
			case c.earlyRelease, c.noWait:
				m.faults = 0
			}
			require.ErrorContains(t, errOf(m.walk()), c.want)
		})
	}
}
