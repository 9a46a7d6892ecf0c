package load

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/vmm"
)

// hostileEnv is how long the hostile minute lasts.
const hostileEnv = "GPUFD_HOSTILE"

func hostileTime(t *testing.T) time.Duration {
	if text := os.Getenv(hostileEnv); text != "" {
		d, err := time.ParseDuration(text)
		require.NoError(t, err, hostileEnv)
		return d
	}
	if cutest.Kind() == cu.CUDA {
		return 10 * time.Second
	}
	return 2 * time.Second
}

// A siege is a producer, good consumers and attackers.
type siege struct {
	last  time.Duration
	grace time.Duration // to recover afterwards
	plant string        // what is wrong with the producer
}

// TestHostileMinute defends invariant 2: garbage, floods, stalls, descriptors
// without end, half-open connections and lies from several processes, while 8
// consumers attach, verify and leave. None of those fails or waits long, and in
// the end the producer uses what it used in the beginning, and serves. Without
// GPUFD_HOSTILE, a few seconds.
func TestHostileMinute(t *testing.T) {
	complaints := siege{last: hostileTime(t), grace: programs.Patience}.run(t)
	require.Empty(t, complaints)
}

// TestHostileMinuteNotices: what is wrong with a producer is found.
func TestHostileMinuteNotices(t *testing.T) {
	cutest.ProvenOnSoft(t)
	words := map[string]string{"descriptor": " descriptors, and before ", "bit": "data differs: first at index "}
	if os.Getenv(hostileEnv) != "" { // there is time
		words["goroutine"] = " goroutines, and before "
		words["memory"] = " bytes of resident memory, and before "
	}
	for plant, word := range words {
		t.Run(plant, func(t *testing.T) {
			if plant == "memory" && cutest.RaceDetector {
				t.Skip("the race detector takes memory as it goes along")
			}
			complaints := siege{last: 500 * time.Millisecond, grace: 2 * time.Second, plant: plant}.run(t)
			require.Contains(t, strings.Join(complaints, "\n"), word)
		})
	}
}

// State of plants.
var (
	plantedPeers  atomic.Int64
	plantedMemory struct {
		sync.Mutex
		kept [][]byte
	}
)

// plants are what can be wrong with a producer. They see its events.
var plants = map[string]func(*stage, *vmm.Buffer, share.Event){
	"descriptor": func(_ *stage, _ *vmm.Buffer, e share.Event) {
		if isPeer(e) && plantedPeers.Add(1) < 100 {
			_, _ = unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
	},
	"goroutine": func(_ *stage, _ *vmm.Buffer, e share.Event) {
		if isPeer(e) && plantedPeers.Add(1) < 100 {
			go func() { select {} }()
		}
	},
	"memory": func(_ *stage, _ *vmm.Buffer, e share.Event) {
		if isPeer(e) {
			plantedMemory.Lock()
			defer plantedMemory.Unlock()
			plantedMemory.kept = append(plantedMemory.kept, bytes.Repeat([]byte{1}, 1<<16))
		}
	},
	"bit": func(st *stage, buf *vmm.Buffer, e share.Event) {
		if e.Kind == share.Ended && plantedPeers.Add(1) == 1 {
			_ = cu.CopyToDevice(st.ctx, buf.Ptr().Add(offerSize-1), []byte{0xaa})
		}
	},
}

// isPeer reports whether an event is the first of a peer's.
func isPeer(e share.Event) bool { return e.Kind == share.Connected || e.Kind == peerRefused }

// run returns what went wrong.
func (x siege) run(t *testing.T) (complaints []string) {
	s := programs.NewScene(t)
	if x.plant != "" {
		defer func() { // as it is killed
			s.Forsaken()
			s.Reclaimed()
		}()
	}
	server := child(s, actProducer, task{What: x.plant, Timeout: hostileStep()})
	peers := map[string]*programs.Process{}
	for i := range 8 {
		peers[fmt.Sprintf("good %d", i+1)] = child(s, actConsumer, task{Timeout: programs.Patience / 2})
	}
	for name := range attackers {
		peers[name] = child(s, actAttacker, task{What: name})
	}
	defer func() { complaints = append(complaints, x.dismiss(server, peers)...) }()
	started, err := askUsage(server)
	if err != nil {
		return []string{err.Error()}
	}
	// The first round is there for things to be made that are made once.
	before, complaints := x.round(server, peers, x.last/5, started, anything.watching(len(peers)))
	if len(complaints) > 0 {
		return complaints
	}
	after, complaints := x.round(server, peers, x.last, before, allowed(0).watching(len(peers)))
	for began := time.Now(); x.plant != "" && len(complaints) == 0 && time.Since(began) < programs.Patience; {
		after, complaints = x.round(server, peers, x.last, before, allowed(0).watching(len(peers)))
	}
	if len(complaints) > 0 {
		return complaints
	}
	t.Logf("the producer before: %v; after: %v", before, after)
	t.Logf("the producer counted %v", after.Counts)
	if consumer := s.Consumer(); consumer.Wait() != 0 {
		complaints = append(complaints, "the producer serves no more\n"+consumer.Dump())
	}
	return append(complaints, x.log(t, peers)...)
}

// dismiss ends everybody. A producer with something wrong has nothing more to say.
func (x siege) dismiss(server *programs.Process, peers map[string]*programs.Process) (complaints []string) {
	for name, p := range peers {
		if err := dismiss(p); err != nil {
			complaints = append(complaints, name+": "+err.Error())
		}
	}
	if x.plant != "" {
		server.Kill()
	} else if err := dismiss(server); err != nil {
		complaints = append(complaints, err.Error())
	}
	return complaints
}

// hostileStep is how long the producer waits for a peer: less than a siege lasts.
func hostileStep() time.Duration {
	if cutest.Emulated() {
		return 20 * time.Second
	}
	return 5 * time.Second
}

// round lets all peers work for a while, and then waits until the producer has recovered.
func (x siege) round(server *programs.Process, peers map[string]*programs.Process, last time.Duration, before usage, may allowance) (usage, []string) {
	complaints := tell(peers, orderGo)
	time.Sleep(last)
	complaints = append(complaints, tell(peers, orderHalt)...)
	after, worse := settle(server, before, may, x.grace)
	return after, append(complaints, worse...)
}

// log tells what everybody did, and complains of who did nothing.
func (x siege) log(t *testing.T, peers map[string]*programs.Process) (complaints []string) {
	for _, name := range slices.Sorted(maps.Keys(peers)) {
		v, err := askUsage(peers[name])
		if err != nil {
			return append(complaints, err.Error())
		}
		t.Logf("%s: %v", name, v.Counts)
		if v.Counts[countHandoffs]+v.Counts[countAttacks] == 0 {
			complaints = append(complaints, name+" did nothing")
		}
		if name == "floods" && v.Counts[countOffers] == 0 {
			complaints = append(complaints, "nobody was flooded after attaching")
		}
	}
	return complaints
}
