package load

import (
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/share"
)

// soakEnv is how many handoffs the soak takes, and seedEnv what decides who dies
// when: the same seed makes the same decisions.
const (
	soakEnv = "GPUFD_SOAK"
	seedEnv = "GPUFD_SEED"
)

// soakHandoffs is what the environment says, or as many as `make test` has time
// for.
func soakHandoffs(t *testing.T) int {
	if text := os.Getenv(soakEnv); text != "" {
		n, err := strconv.Atoi(text)
		require.NoError(t, err, soakEnv)
		return n
	}
	switch {
	case cutest.Kind() == cu.CUDA && cutest.All():
		return 1000
	case cutest.Kind() == cu.CUDA:
		return 100
	case cutest.Emulated():
		return 20
	}
	return 200
}

// seedOf is that of the environment, or a new one. A failure prints it.
func seedOf(t *testing.T) uint64 {
	seed := rand.Uint64N(1e6)
	if text := os.Getenv(seedEnv); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, seedEnv)
	}
	t.Logf("%s=%d", seedEnv, seed)
	return seed
}

// A soak is a long-lived producer with dying consumers, and a long-lived
// consumer with dying producers, both at once.
type soak struct {
	t        *testing.T
	seed     uint64
	producer *programs.Scene // with the producer that lives long
	consumer *programs.Scene // with the consumer that lives long
	ends     chan *life
	lives    uint64
	alive    map[*life]bool
	wanted   int // handoffs that are yet to be begun
	handoffs int // that were finished
	killed   map[string]int
}

// A life is a process that will be killed.
type life struct {
	*programs.Process
	task
	producer bool
}

// TestFault14_Soak: ten thousand handoffs in parallel, in which consumers and
// producers are killed at random moments (SIGKILL), leave those who live as they
// were: descriptors, memory, address space, goroutines, threads, and the device's
// memory. What the dead left on disk is reclaimed. Without GPUFD_SOAK, fewer.
func TestFault14_Soak(t *testing.T) {
	cutest.Alone(t, programs.CountsMemory)
	n := soakHandoffs(t)
	x := &soak{t: t, seed: seedOf(t), producer: programs.NewScene(t), consumer: programs.NewScene(t), ends: make(chan *life),
		alive: map[*life]bool{}, killed: map[string]int{}}
	server := child(x.producer, actProducer, task{Timeout: programs.Patience})
	consumer := child(x.consumer, actConsumer, task{Timeout: programs.Patience, Lenient: true})
	long := map[string]*programs.Process{"producer": server, "consumer": consumer}
	started := x.settled(long, nil, anything)

	x.run(consumer, max(n/20, 10)) // so that what is made once has been made
	before := x.settled(long, started, anything)
	free, files := programs.FreeMemory(t), softFiles(t)
	x.handoffs, x.killed = 0, map[string]int{}
	x.run(consumer, n)
	after := x.settled(long, before, allowed(n))
	programs.RequireFree(t, free)

	x.producer.Consumer().Succeeds() // it still serves, and reclaims
	require.LessOrEqual(t, len(softFiles(t)), len(files), "files of the software driver")
	x.lastProducer(consumer)
	counts := after["producer"].Counts
	t.Logf("%d handoffs and %d more in the middle of which somebody was killed: %v", x.handoffs, x.allKilled(), x.killed)
	t.Logf("the long-lived producer counted %v, the long-lived consumer %v", counts, after["consumer"].Counts)
	require.GreaterOrEqual(t, counts[share.Connected.String()], n)
	require.Equal(t, counts[share.Connected.String()], counts[share.Ended.String()], "every lease has ended")
	require.GreaterOrEqual(t, counts[countVerified], x.handoffs, "no consumer thinks better of a handoff than its producer")
	require.Zero(t, counts[countOther], "leases that ended neither well nor by the consumer's death")
	for name, p := range long {
		t.Logf("%s before: %v; after: %v", name, before[name], after[name])
		require.NoError(t, dismiss(p))
	}
}

// settled waits until the long-lived use no more than before, if there is a
// before, and what they may.
func (x *soak) settled(long map[string]*programs.Process, before map[string]usage, may allowance) map[string]usage {
	x.t.Helper()
	all := map[string]usage{}
	for name, p := range long {
		var complaints []string
		if before == nil {
			v, err := askUsage(p)
			require.NoError(x.t, err)
			all[name] = v
			continue
		}
		all[name], complaints = settle(p, before[name], may, programs.Patience)
		require.NoError(x.t, complaint(complaints), name)
	}
	return all
}

// run begins n handoffs with the long-lived producer, and as many with the
// long-lived consumer as there is time for meanwhile.
func (x *soak) run(consumer *programs.Process, n int) {
	const consumers = 4
	_, err := order(consumer, orderGo)
	require.NoError(x.t, err)
	x.wanted = n
	x.startLife(true)
	for range consumers {
		x.startLife(false)
	}
	for len(x.alive) > 0 {
		l := x.nextEnd()
		switch {
		case x.wanted > 0:
			x.startLife(l.producer)
		case !x.consumersAlive():
			for other := range x.alive {
				other.killAfter(0)
			}
		case l.producer:
			x.startLife(true)
		}
	}
	_, err = order(consumer, orderHalt)
	require.NoError(x.t, err)
}

func (x *soak) consumersAlive() bool {
	for l := range x.alive {
		if !l.producer {
			return true
		}
	}
	return false
}

var (
	consumerDeaths = []string{dieConnected, dieReceived, dieImporting, dieMapped, dieVerifying, dieReporting, dieAnywhere, dieStarting}
	producerDeaths = []string{dieListening, dieExpecting, dieFilling, dieAnywhere, dieStarting,
		share.Connected.String(), share.Sent.String(), share.Mapped.String(), share.Verdict.String(), share.Ended.String()}
)

// startLife starts a process whose death depends only on the seed and the number of its life.
func (x *soak) startLife(producer bool) {
	x.lives++
	fate := rand.New(rand.NewPCG(x.seed, x.lives))
	l := &life{producer: producer}
	l.Count = fate.IntN(20)
	l.After = time.Duration(fate.Int64N(int64(5 * time.Millisecond)))
	if producer {
		l.What, l.Salt = producerDeaths[fate.IntN(len(producerDeaths))], fate.Uint32()
		l.Count = 1 + l.Count/4 // the number of a lease
		l.Process = dying(x.consumer, actDyingProducer, l.task)
	} else {
		l.What = consumerDeaths[fate.IntN(len(consumerDeaths))]
		l.Process = dying(x.producer, actDyingConsumer, l.task)
		x.wanted -= l.surely()
	}
	switch l.What {
	case dieAnywhere:
		l.killAfter(startup() + time.Duration(fate.Int64N(int64(300*time.Millisecond))))
	case dieStarting:
		l.killAfter(time.Duration(fate.Int64N(int64(startup()))))
	}
	x.alive[l] = true
	go func() {
		<-l.Done
		x.ends <- l
	}()
}

// startup is about how long a process takes to open its device.
func startup() time.Duration {
	if cutest.Kind() == cu.CUDA || cutest.Emulated() {
		return time.Second
	}
	return 20 * time.Millisecond
}

// surely is how many handoffs a consumer begins before it dies by its own hand.
func (l *life) surely() int {
	switch {
	case l.byUs():
		return 0
	case l.What == dieConnected: // it asked for nothing
		return l.Count
	}
	return l.Count + 1
}

func (l *life) byUs() bool { return l.What == dieAnywhere || l.What == dieStarting }

// dying is child; a new producer waits until nobody answers for the last.
func dying(s *programs.Scene, mode string, do task) *programs.Process {
	if mode == actDyingProducer {
		s.Forsaken()
	}
	return child(s, mode, do)
}

// killAfter kills from outside.
func (l *life) killAfter(d time.Duration) {
	time.AfterFunc(d, func() { _ = l.Cmd.Process.Kill() })
}

// nextEnd waits for a death, and checks that it was one.
func (x *soak) nextEnd() *life {
	x.t.Helper()
	select {
	case l := <-x.ends:
		delete(x.alive, l)
		status := l.Cmd.ProcessState.Sys().(syscall.WaitStatus)
		require.True(x.t, status.Signaled() && status.Signal() == syscall.SIGKILL, "%s: %s\n%s", l.What, l.Cmd.ProcessState, l.Dump())
		require.Empty(x.t, l.Err.All(), l.Dump())
		done := len(programs.Find(l.Process, "handoff"))
		x.handoffs += done
		if l.byUs() {
			x.wanted -= done
		}
		x.killed[l.Name+" "+l.What]++
		return l
	case <-time.After(programs.Patience):
		for l := range x.alive {
			x.t.Log(l.What, l.Dump())
		}
		x.t.Fatalf("no process of %d died within %s", len(x.alive), programs.Patience)
		return nil
	}
}

func (x *soak) allKilled() (n int) {
	for _, k := range x.killed {
		n += k
	}
	return n
}

// lastProducer lives until it is dismissed, so that the socket is left by
// somebody who tidies up.
func (x *soak) lastProducer(consumer *programs.Process) {
	had, err := askUsage(consumer)
	require.NoError(x.t, err)
	x.consumer.Forsaken()
	last := child(x.consumer, actDyingProducer, task{Salt: 1})
	_, err = order(consumer, orderGo)
	require.NoError(x.t, err)
	programs.Eventually(x.t, func() bool {
		v, err := askUsage(consumer)
		require.NoError(x.t, err)
		return v.Counts[countHandoffs] > had.Counts[countHandoffs]
	}, "the long-lived consumer gets nothing from a new producer")
	_, err = order(consumer, orderHalt)
	require.NoError(x.t, err)
	require.NoError(x.t, dismiss(last))
}

func softFiles(t *testing.T) []string { return programs.SoftFiles(t, os.Getenv("GPUFD_SOFT_DIR")) }
