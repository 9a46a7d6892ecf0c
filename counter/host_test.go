package counter

import (
	"context"
	"errors"
	"math"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/internal/testenv"
)

// The host reads a number and waits for it, though a stream of its own is held up.
func TestCounterOnTheHost(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	gate, s := newGate(t, ctx), newStream(t, ctx)
	mine, theirs := counters(t, ctx, control(t, ctx))
	require.Zero(t, ok(mine.Value())(t))
	require.NoError(t, mine.Await(soon(t), 0))
	gate.hold(t, s)
	require.NoError(t, mine.Signal(s, 7))
	require.Zero(t, ok(mine.Value())(t), "the stream is not there yet")
	results := make(chan error)
	for i := range uint64(7) {
		go func() { results <- mine.Await(soon(t), 1+i) }()
	}
	gate.open(t)
	for range 7 {
		require.NoError(t, <-results)
	}
	require.EqualValues(t, 7, ok(mine.Value())(t))
	require.Zero(t, ok(theirs.Value())(t), "another slot")
	require.ErrorContains(t, mine.Await(soon(t), given), "counts below")
	require.ErrorContains(t, mine.Signal(s, given), "counts below")
	require.ErrorContains(t, errOf(mine.Wait(soon(t), s, given)), "counts below")
}

// Close of the counter ends what waits for it on the host. Nothing can be asked of it then.
func TestCounterIsClosedWhileTheHostWaits(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	buf, s := control(t, ctx), newStream(t, ctx)
	c := ok(New(ctx, buf, parentSlot))(t)
	results := make(chan error)
	for range 3 {
		go func() { results <- c.Await(soon(t), 1) }()
	}
	require.NoError(t, errors.Join(c.Close(), c.Close()))
	for range 3 {
		require.ErrorIs(t, <-results, cu.ErrClosed)
	}
	for _, err := range []error{errOf(c.Value()), c.Signal(s, 1), errOf(c.Wait(soon(t), s, 1))} {
		require.ErrorIs(t, err, cu.ErrClosed)
	}
	require.ErrorIs(t, c.usage.give(s, func() error { panic("called") }), cu.ErrClosed, "a caller that was about to")
	require.NoError(t, buf.Close())
}

// A signaller whose counter was given up is told when it looks, and has a
// broken counter from then on. What was never signalled is no number.
func TestCounterThatAnotherHasGivenUp(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	s, buf := newStream(t, ctx), control(t, ctx)
	mine, other := counters(t, ctx, buf)
	theirs := counterAt(t, ctx, buf, parentSlot) // as the peer's of the same slot
	limited, cancel := context.WithCancel(t.Context())
	w := ok(mine.Wait(limited, s, 1))(t)
	awaited := make(chan error, 1)
	go func() { awaited <- theirs.Await(soon(t), 1) }()
	cancel()
	require.ErrorIs(t, w.Result(), cu.ErrGivenUp)
	require.ErrorIs(t, <-awaited, cu.ErrGivenUp)
	require.ErrorIs(t, theirs.Signal(s, 1), cu.ErrGivenUp)
	require.ErrorIs(t, errOf(mine.Value()), context.Canceled, "the reason is known here")
	require.ErrorIs(t, mine.Await(soon(t), 1), context.Canceled)

	require.NoError(t, s.WriteValue64(other.word, math.MaxUint64, cu.WriteDefault))
	require.NoError(t, s.Synchronize(soon(t)))
	require.ErrorContains(t, errOf(other.Value()), "counter: counter 1 is 0xffffffffffffffff")
	require.NoError(t, other.Signal(s, 1))
}

// Numbers only grow: a signal that would take one back is refused before it is queued.
func TestSignalsGrow(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	s := newStream(t, ctx)
	mine, _ := counters(t, ctx, control(t, ctx))
	require.ErrorContains(t, mine.Signal(s, 0), "counts from 1")
	require.NoError(t, mine.Signal(s, 5))
	for _, n := range []uint64{1, 4, 5} {
		require.ErrorContains(t, mine.Signal(s, n), "the last signal was 5")
	}
	require.ErrorContains(t, mine.Signal(s, 4), "counter: counter 0 cannot be signalled 4")
	require.ErrorIs(t, mine.Signal(nil, 6), cu.ErrClosed)
	require.NoError(t, mine.Signal(s, 6), "which failed before, and was not queued")
	require.NoError(t, mine.Await(soon(t), 6))
}

// A signal behind a wait that was given up does not pass for finished: the peer's waits for
// it fail, on the host and in streams, also those that come later, and so does the signaller's
// counter. One behind another wait, or before that one, is as ever.
func TestFault90_SignalBehindAWaitThatIsGivenUp(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	s, theirStream, buf := newStream(t, ctx), newStream(t, ctx), control(t, ctx)
	mine, _ := counters(t, ctx, buf)
	open := func(slot int) *Counter { return counterAt(t, ctx, buf, slot) }
	before, behind := open(2), open(3)
	theirBefore, theirs, late := open(2), open(3), open(3) // as the peer's of the same slots
	require.NoError(t, before.Signal(s, 1))
	limited, cancel := context.WithCancel(t.Context())
	w := ok(mine.Wait(limited, s, 1))(t)
	for n := range uint64(3) {
		require.NoError(t, behind.Signal(s, 1+n))
	}
	waits := ok(theirs.Wait(soon(t), theirStream, 3))(t)
	awaited := make(chan error, 1)
	go func() { awaited <- theirs.Await(soon(t), 3) }()
	cancel()
	require.ErrorIs(t, w.Result(), cu.ErrGivenUp)
	require.ErrorIs(t, <-awaited, cu.ErrGivenUp)
	require.ErrorIs(t, waits.Result(), cu.ErrGivenUp)
	require.NoError(t, s.Synchronize(soon(t)))
	require.ErrorIs(t, late.Await(soon(t), 1), cu.ErrGivenUp)
	require.ErrorContains(t, late.Await(soon(t), 1), "behind a wait that was given up")
	require.ErrorIs(t, behind.Signal(s, 4), context.Canceled)

	require.NoError(t, theirBefore.Await(soon(t), 1))
	require.NoError(t, before.Signal(s, 2), "the wait is over")
	require.NoError(t, theirBefore.Await(soon(t), 2))
}

// A thousand waits end when their numbers come, and make few driver calls until then:
// what looks for the numbers pauses. BenchmarkWaits says how much of a CPU that takes.
func TestManyWaitsEnd(t *testing.T) {
	for name, c := range crowds {
		t.Run(name, func(t *testing.T) {
			if c.streams > 9 && cutest.Kind() == cu.CUDA {
				t.Skip("a GPU has few queues: TestManyStreamsAreFreed has as many streams as may wait there")
			}
			if c.streams > 0 && !isAlone(t) {
				return
			}
			var calls atomic.Int64
			ctx := cutest.Context(t, cutest.Device(t, cu.WithHook(func(_ sys.Call, next func() sys.CUresult) sys.CUresult {
				calls.Add(1)
				return next()
			})))
			patient, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // it takes long to begin all with the race detector
			defer cancel()
			asked, ends := c.measure(t, ctx, patient, time.Second, 400*time.Millisecond, calls.Load)
			t.Logf("%.0f driver calls a second; they end in %v", asked, ends)
			most := 1000.0
			if c.streams > 0 {
				most = 10000 // all streams together ask some 2,000 times a second
			}
			require.Less(t, asked, most, "driver calls a second")
			pollers.Lock()
			defer pollers.Unlock()
			require.LessOrEqual(t, len(pollers.of), 1)
		})
	}
}

// isAlone reports whether this process has t alone, so that it can be killed if the driver hangs.
// If not, isAlone runs t in such a process.
func isAlone(t *testing.T) bool {
	t.Helper()
	const alone = testenv.Prefix + "ALONE"
	if os.Getenv(alone) == t.Name() {
		return true
	}
	patience := map[cu.Kind]time.Duration{cu.Soft: 5 * time.Minute, cu.CUDA: 30 * time.Second}[cutest.Kind()]
	limited, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	run := "^" + strings.ReplaceAll(regexp.QuoteMeta(t.Name()), "/", "$/^") + "$"
	cmd := exec.CommandContext(limited, "/proc/self/exe", "-test.v", "-test.run", run)
	cmd.Env = append(os.Environ(), alone+"="+t.Name())
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: "+t.Name())
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); strings.Contains(line, "_test.go:") { // not what looks like results
			t.Log(line)
		}
	}
	return false
}

// A signal that comes when the wait is over is behind it as well: it is refused as long as nobody
// knows that the wait was given up, and nothing is broken.
func TestFault90_SignalWhenTheWaitIsOver(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	s, buf := newStream(t, ctx), control(t, ctx)
	mine, other := counters(t, ctx, buf)
	limited, cancel := context.WithCancel(t.Context())
	w := ok(mine.Wait(limited, s, 1))(t)
	cancel()
	<-w.Done()
	require.NoError(t, s.Synchronize(soon(t)))
	err := other.Signal(s, 1)
	require.ErrorIs(t, err, cu.ErrGivenUp)
	require.ErrorContains(t, err, "counter: counter 1 cannot be signalled 1 behind a wait that was given up")
	require.Zero(t, ok(other.Value())(t))
	require.ErrorIs(t, w.Result(), cu.ErrGivenUp)
	require.NoError(t, other.Signal(s, 1))
	require.NoError(t, other.Await(soon(t), 1))
}

// A signal behind a wait in another stream, which waits for the same number as one that is given
// up, does not pass for finished either: before any stream goes on the slot says so. Nor do waits
// behind that wait.
func TestFault90_SignalBehindAnotherWaitForTheSame(t *testing.T) {
	faults, ctx := faulty(t)
	first, second, buf := newStream(t, ctx), newStream(t, ctx), control(t, ctx)
	open := func(slot int) *Counter { return counterAt(t, ctx, buf, slot) }
	mine, other, behind, theirs := open(0), open(1), open(2), open(2) // as the peer's of the same slot
	limited, cancel := context.WithCancel(t.Context())
	w := []*cu.StreamWait{
		ok(mine.Wait(limited, first, 1))(t), ok(mine.Wait(soon(t), second, 1))(t), ok(other.Wait(soon(t), second, 1))(t),
	}
	require.NoError(t, behind.Signal(second, 1))
	var writes []cu.DevicePtr
	hook := faults.Hook("cuStreamWriteValue64_v2", func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		writes = append(writes, cu.DevicePtr(call.Arg(1)))
		return next()
	})
	cancel()
	require.ErrorIs(t, w[0].Result(), cu.ErrGivenUp)
	require.ErrorIs(t, w[1].Result(), cu.ErrGivenUp)
	hook.Stop()
	require.Equal(t, []cu.DevicePtr{behind.word.Add(spoiledAt), mine.word}, writes[:2])
	require.NoError(t, other.Signal(first, 1))
	require.ErrorIs(t, w[2].Result(), cu.ErrGivenUp)
	require.ErrorIs(t, theirs.Await(soon(t), 1), cu.ErrGivenUp)
	require.NoError(t, errors.Join(first.Synchronize(soon(t)), second.Synchronize(soon(t))))
}

// A copy may have the word behind the number from before a wait was given up, and the number
// from after that: it is looked at again. Where nothing has changed one copy is enough.
// One that falls whenever it is looked at ends no wait and keeps nobody.
func TestNumberAndWordAreReadInOrder(t *testing.T) {
	faults, ctx := faulty(t)
	s, buf := newStream(t, ctx), control(t, ctx)
	mine, other := counters(t, ctx, buf)
	copies := 0
	hook := faults.Hook("cuMemcpyDtoHAsync_v2", func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		r := next()
		if copies++; copies == 4 {
			setWord(call.Arg(0)+spoiledAt, 0)
		}
		return r
	})
	require.NoError(t, mine.Signal(s, 1))
	require.NoError(t, s.Synchronize(soon(t)))
	for _, after := range []int{2, 3} {
		require.EqualValues(t, 1, ok(mine.Value())(t))
		require.Equal(t, after, copies)
	}
	require.NoError(t, s.WriteValue64(mine.word.Add(spoiledAt), spoiled, cu.WriteDefault))
	require.NoError(t, s.WriteValue64(mine.word, 2, cu.WriteDefault))
	require.NoError(t, s.Synchronize(soon(t)))
	require.ErrorIs(t, errOf(mine.Value()), cu.ErrGivenUp)
	require.Equal(t, 5, copies)
	hook.Stop()

	number := uint64(1000) // which falls whenever it is looked at
	faults.Hook("cuMemcpyDtoHAsync_v2", func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		r := next()
		number--
		setWord(call.Arg(0), number)
		return r
	})
	require.ErrorContains(t, errOf(other.Value()), "falls again and again")
	require.ErrorContains(t, other.Await(soon(t), 1), "falls again and again")
}

// cpuTime is what this process has used of all CPUs in nanoseconds, the driver's share included.
func cpuTime() int64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return u.Utime.Nano() + u.Stime.Nano()
}

// A crowd is many waits: of how many counters, in how many streams, or of the host.
type crowd struct{ counters, streams int }

var crowds = map[string]crowd{
	"one stream":      {1, 1},
	"several streams": {1, 4}, // which leave hardware queues to the signaller
	"many streams":    {1, manyWaits},
	"host":            {1, 0},
	"host, counters":  {manyWaits, 0},
}

// begin makes the crowd wait until ctx ends, or the number is 1, and returns the counters and
// what waits for the waits.
func (c crowd) begin(t testing.TB, ctx *cu.Context, limited context.Context) (counters []*Counter, wait func() []error) {
	t.Helper()
	buf := control(t, ctx)
	for i := range c.counters {
		counters = append(counters, counterAt(t, ctx, buf, i))
	}
	var streams []*cu.Stream
	for range c.streams {
		streams = append(streams, newStream(t, ctx))
	}
	results := make([]error, manyWaits)
	var all sync.WaitGroup
	for i := range manyWaits {
		counter := counters[i%c.counters]
		if c.streams == 0 {
			all.Go(func() { results[i] = counter.Await(limited, 1) })
			continue
		}
		w := ok(counter.Wait(limited, streams[i%c.streams], 1))(t)
		all.Go(func() { results[i] = w.Result() })
	}
	return counters, func() []error { all.Wait(); return results }
}

// measure makes the crowd wait, and returns by how much spent grows in a second while nothing
// comes, and how long the waits take to end when the numbers have come.
func (c crowd) measure(t testing.TB, ctx *cu.Context, limited context.Context, settle, window time.Duration, spent func() int64) (perSecond float64, ends time.Duration) {
	t.Helper()
	s := ok(ctx.NewStreamWith(mostUrgent))(t) // streams that wait do not hold it up
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	counters, wait := c.begin(t, ctx, limited)
	time.Sleep(settle) // until the pauses are as long as they get
	perSecond = math.Inf(1)
	for range 2 { // whatever else goes on only adds to it
		begun, before := time.Now(), spent()
		time.Sleep(window)
		perSecond = min(perSecond, float64(spent()-before)/time.Since(begun).Seconds())
	}
	begun := time.Now()
	for _, counter := range counters {
		require.NoError(t, counter.Signal(s, 1))
	}
	require.NoError(t, errors.Join(wait()...))
	return perSecond, time.Since(begun)
}

// BenchmarkWaits measures a thousand outstanding waits, of streams or of the host.
func BenchmarkWaits(b *testing.B) {
	for name, c := range crowds {
		b.Run(name, func(b *testing.B) {
			if c.streams > 9 && cutest.Kind() == cu.CUDA {
				b.Skip("a GPU has few queues")
			}
			ctx := cutest.Context(b, cutest.Device(b))
			for b.Loop() {
				busy, ends := c.measure(b, ctx, soon(b), 3*time.Second, 2*time.Second, cpuTime)
				b.ReportMetric(100*busy/float64(time.Second), "%CPU")
				b.ReportMetric(float64(ends.Milliseconds()), "ms-to-end")
			}
		})
	}
}

// Streams that wait are freed when nobody is to signal any more, however many they are, and the
// number can be read meanwhile.
//
//fault:rows 18
func TestManyStreamsAreFreed(t *testing.T) {
	for _, n := range map[cu.Kind][]int{cu.Soft: {9, 64, manyWaits}, cu.CUDA: {9}}[cutest.Kind()] { // a GPU has few queues
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			if !isAlone(t) {
				return
			}
			ctx := cutest.Context(t, cutest.Device(t))
			c := ok(New(ctx, control(t, ctx), parentSlot))(t)
			limited, cancel := context.WithCancel(t.Context())
			var waits []*cu.StreamWait
			for range n {
				waits = append(waits, ok(c.Wait(limited, newStream(t, ctx), 1))(t))
			}
			require.Zero(t, ok(c.Value())(t))
			cancel()
			for _, w := range waits {
				require.ErrorIs(t, w.Result(), cu.ErrGivenUp)
				require.NotErrorIs(t, w.Result(), context.DeadlineExceeded, "the stream still waits")
			}
			require.NoError(t, c.Close())
		})
	}
}
