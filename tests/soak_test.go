package tests

import (
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

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

// A soak is a long-lived producer with mortal consumers, and a long-lived
// consumer with mortal producers, both at once.
type soak struct {
	t        *testing.T
	seed     uint64
	producer *scene // with the producer that lives long
	consumer *scene // with the consumer that lives long
	ends     chan *life
	lives    uint64
	alive    map[*life]bool
	wanted   int // handoffs that are yet to be begun
	handoffs int // that were finished
	killed   map[string]int
}

// A life is a process that will be killed.
type life struct {
	*process
	task
	producer bool
}

// TestFault14_Soak: ten thousand handoffs in parallel, in which consumers and
// producers are killed at random moments (SIGKILL), leave those who live as they
// were: descriptors, memory, address space, goroutines, threads, and the device's
// memory. What the dead left on disk is reclaimed. Without GPUFD_SOAK, fewer.
func TestFault14_Soak(t *testing.T) {
	cutest.Alone(t, countsMemory)
	n := soakHandoffs(t)
	x := &soak{t: t, seed: seedOf(t), producer: newScene(t), consumer: newScene(t), ends: make(chan *life),
		alive: map[*life]bool{}, killed: map[string]int{}}
	server := x.producer.actor(actServer, task{Timeout: patience})
	customer := x.consumer.actor(actCustomer, task{Timeout: patience, Lenient: true})
	long := map[string]*process{"producer": server, "consumer": customer}
	started := x.settled(long, nil, anything)

	x.run(customer, max(n/20, 10)) // so that what is made once has been made
	before := x.settled(long, started, anything)
	free, files := freeMemory(t), softFiles(t)
	x.handoffs, x.killed = 0, map[string]int{}
	x.run(customer, n)
	after := x.settled(long, before, allowed(n))
	requireFree(t, free)

	x.producer.consumer().succeeds() // it still serves, and reclaims
	require.LessOrEqual(t, len(softFiles(t)), len(files), "files of the software driver")
	x.lastProducer(customer)
	counts := after["producer"].Counts
	t.Logf("%d handoffs and %d more in the middle of which somebody was killed: %v", x.handoffs, x.allKilled(), x.killed)
	t.Logf("the long-lived producer counted %v, the long-lived consumer %v", counts, after["consumer"].Counts)
	require.GreaterOrEqual(t, counts[share.Connected.String()], n)
	require.Equal(t, counts[share.Connected.String()], counts[share.Ended.String()], "every lease has ended")
	require.GreaterOrEqual(t, counts[countVerified], x.handoffs, "no consumer thinks better of a handoff than its producer")
	require.Zero(t, counts[countOther], "leases that ended neither well nor by the consumer's death")
	for name, p := range long {
		t.Logf("%s before: %v; after: %v", name, before[name], after[name])
		require.NoError(t, p.dismiss())
	}
}

// settled waits until the long-lived use no more than before, if there is a
// before, and what they may.
func (x *soak) settled(long map[string]*process, before map[string]vitals, may allowance) map[string]vitals {
	x.t.Helper()
	all := map[string]vitals{}
	for name, p := range long {
		var complaints []string
		if before == nil {
			v, err := p.vitals()
			require.NoError(x.t, err)
			all[name] = v
			continue
		}
		all[name], complaints = p.settle(before[name], may, patience)
		require.NoError(x.t, complaint(complaints), name)
	}
	return all
}

// run begins n handoffs with the long-lived producer, and as many with the
// long-lived consumer as there is time for meanwhile.
func (x *soak) run(customer *process, n int) {
	const consumers = 4
	_, err := customer.order(orderGo)
	require.NoError(x.t, err)
	x.wanted = n
	x.born(true)
	for range consumers {
		x.born(false)
	}
	for len(x.alive) > 0 {
		l := x.nextEnd()
		switch {
		case x.wanted > 0:
			x.born(l.producer)
		case !x.consumersAlive():
			for other := range x.alive {
				other.killAfter(0)
			}
		case l.producer:
			x.born(true)
		}
	}
	_, err = customer.order(orderHalt)
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

// born starts a process whose fate hangs on the seed and the number of its life
// alone.
func (x *soak) born(producer bool) {
	x.lives++
	fate := rand.New(rand.NewPCG(x.seed, x.lives))
	l := &life{producer: producer}
	l.Count = fate.IntN(20)
	l.After = time.Duration(fate.Int64N(int64(5 * time.Millisecond)))
	if producer {
		l.What, l.Salt = producerDeaths[fate.IntN(len(producerDeaths))], fate.Uint32()
		l.Count = 1 + l.Count/4 // the number of a lease
		l.process = x.consumer.mortal(actMortalProducer, l.task)
	} else {
		l.What = consumerDeaths[fate.IntN(len(consumerDeaths))]
		l.process = x.producer.mortal(actMortalConsumer, l.task)
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
		<-l.done
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

// mortal is actor; a new producer waits until nobody answers for the last.
func (s *scene) mortal(mode string, do task) *process {
	if mode == actMortalProducer {
		s.forsaken()
	}
	return s.actor(mode, do)
}

// killAfter kills from outside.
func (l *life) killAfter(d time.Duration) {
	time.AfterFunc(d, func() { _ = l.cmd.Process.Kill() })
}

// nextEnd waits for a death, and checks that it was one.
func (x *soak) nextEnd() *life {
	x.t.Helper()
	select {
	case l := <-x.ends:
		delete(x.alive, l)
		status := l.cmd.ProcessState.Sys().(syscall.WaitStatus)
		require.True(x.t, status.Signaled() && status.Signal() == syscall.SIGKILL, "%s: %s\n%s", l.What, l.cmd.ProcessState, l.dump())
		require.Empty(x.t, l.err.all(), l.dump())
		done := len(find(l.process, "handoff"))
		x.handoffs += done
		if l.byUs() {
			x.wanted -= done
		}
		x.killed[l.name+" "+l.What]++
		return l
	case <-time.After(patience):
		for l := range x.alive {
			x.t.Log(l.What, l.dump())
		}
		x.t.Fatalf("no process of %d died within %s", len(x.alive), patience)
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
func (x *soak) lastProducer(customer *process) {
	had, err := customer.vitals()
	require.NoError(x.t, err)
	x.consumer.forsaken()
	last := x.consumer.actor(actMortalProducer, task{Salt: 1})
	_, err = customer.order(orderGo)
	require.NoError(x.t, err)
	eventually(x.t, func() bool {
		v, err := customer.vitals()
		require.NoError(x.t, err)
		return v.Counts[countHandoffs] > had.Counts[countHandoffs]
	}, "the long-lived consumer gets nothing from a new producer")
	_, err = customer.order(orderHalt)
	require.NoError(x.t, err)
	require.NoError(x.t, last.dismiss())
}
