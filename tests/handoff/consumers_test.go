package handoff

import (
	"fmt"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
)

// TestConsumersAtOnce: several consumers attach and verify at the same time.
func TestConsumersAtOnce(t *testing.T) {
	programs.Parallel(t)
	for _, n := range []int{2, 4, 16} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			programs.Parallel(t)
			if n != 4 {
				cutest.ProvenOnSoft(t)
			}
			s := programs.NewScene(t)
			producer := s.Producer("-json", "-size", "9MiB", "-chunk", "2MiB", "-consumers", strconv.Itoa(n))
			programs.WaitEvent(t, producer, "waiting")
			consumers := make([]*programs.Process, n)
			for i := range consumers {
				consumers[i] = s.Consumer()
			}
			for _, c := range consumers {
				c.Succeeds()
			}
			producer.Succeeds()
			last, _ := producer.Result()
			require.Equal(t, map[string]any{"verified": float64(n), "failed": 0.0}, last["consumers"])
		})
	}
}

// TestServeUntilSignal: with -consumers 0 a producer serves until it is asked
// to end, and that is success.
func TestServeUntilSignal(t *testing.T) {
	programs.Parallel(t)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		for _, consumers := range []int{0, 2} {
			t.Run(fmt.Sprintf("%s after %d consumers", sig, consumers), func(t *testing.T) {
				programs.Parallel(t)
				if sig != syscall.SIGTERM || consumers == 0 {
					cutest.ProvenOnSoft(t)
				}
				s := programs.NewScene(t)
				producer := s.Producer("-json", "-consumers", "0", "-timeout", "10s")
				programs.WaitEvent(t, producer, "waiting")
				for range consumers {
					s.Consumer().Succeeds()
				}
				producer.Signal(sig)
				producer.Succeeds()
				last, _ := producer.Result()
				require.Equal(t, map[string]any{"verified": float64(consumers), "failed": 0.0}, last["consumers"])
			})
		}
	}
}

// TestSignalTellsConsumers: a consumer that is attached when the producer is
// interrupted learns that the offer has ended, and exits 4.
func TestSignalTellsConsumers(t *testing.T) {
	programs.Parallel(t)
	s, producer := serving(t)
	consumer := s.Relayed(t, nil, programs.Drop(programs.TypeVerdict)).Consumer()
	consumer.WaitLine("Received FD")
	consumer.Stop()
	producer.Signal(syscall.SIGTERM)
	producer.WaitLine("Cleanup complete")
	producer.Succeeds()
	require.NoError(t, programs.Resume(consumer))
	require.Equal(t, 4, consumer.Wait(), consumer.Dump())
}

// TestTooManyConsumers: one that comes when all places are taken is turned
// away, and those that have one are not disturbed.
func TestTooManyConsumers(t *testing.T) {
	programs.Parallel(t)
	s, producer := serving(t, "-consumers", "1")
	att := s.MustAttach(share.AttachOptions{})
	s.Consumer().Fails(1, "has all it waits for: ")
	programs.Report(t, att, nil)
	producer.Succeeds()
}

// TestRefusalHarmsNobody: a consumer that asks for more than is offered goes
// away with a reason, and the next is served.
func TestRefusalHarmsNobody(t *testing.T) {
	programs.Parallel(t)
	s, producer := serving(t, "-access", "ro")
	s.Consumer("-access", "rw").Fails(1, "read-only", "read-write")
	producer.WaitLine("  turned a peer away")
	s.Consumer().Succeeds()
	producer.Succeeds()
}

// TestConsumerWaitsForItsProducer: a consumer that comes first finds its producer, also
// where a dead one has left its socket; both print the socket, what they wait
// for and how long.
func TestConsumerWaitsForItsProducer(t *testing.T) {
	programs.Parallel(t)
	for name, before := range map[string]func(s *programs.Scene){
		"nothing":        func(*programs.Scene) {},
		"a stale socket": func(s *programs.Scene) { s.Kill(s.Serving()) },
	} {
		t.Run(name, func(t *testing.T) {
			s := programs.NewScene(t)
			before(s)
			consumer := s.Consumer("-timeout", "1m")
			consumer.WaitLine("  no producer is there yet: waiting for one, for 1m0s at most")
			producer := s.Producer("-timeout", "2m", "-consumers", "1")
			consumer.Succeeds()
			producer.Succeeds()
			require.Len(t, programs.Find(consumer, "  at "+s.Socket), 1, consumer.Dump())
			require.Len(t, programs.Find(producer, "  listening at "+s.Socket), 1, producer.Dump())
			require.Len(t, programs.Find(producer, "  at "+s.Socket+" for 1 consumer; ends after 2m0s without one"), 1, producer.Dump())
		})
	}
}

// TestConsumerNamesAMissingDirectory: a producer listens in no directory that is not there.
func TestConsumerNamesAMissingDirectory(t *testing.T) {
	programs.Parallel(t)
	s := programs.NewScene(t)
	dir := filepath.Join(filepath.Dir(s.Socket), "none")
	c := s.Consumer("-socket", dir+"/s", "-timeout", "100ms")
	c.Fails(1, "no producer there within 100ms")
	require.Len(t, programs.Find(c, "  there is no directory "+dir+", so no producer can be there yet: waiting for one, for 100ms at most"), 1, c.Dump())
}

// TestProducerSaysWhatASizeTakes: memory comes in multiples of the granularity.
func TestProducerSaysWhatASizeTakes(t *testing.T) {
	programs.Parallel(t)
	s, producer := serving(t, "-size", "7")
	require.Len(t, programs.Find(producer, "  2 MiB of device memory: it comes in multiples of 2 MiB"), 1, producer.Dump())
	s.Consumer().Succeeds()
	producer.Succeeds()
}

// TestConsumerStopsWaiting: a signal ends the wait for a producer.
func TestConsumerStopsWaiting(t *testing.T) {
	programs.Parallel(t)
	cutest.ProvenOnSoft(t)
	consumer := programs.NewScene(t).Consumer("-json", "-timeout", "1h")
	programs.WaitEvent(t, consumer, "waiting")
	consumer.Signal(syscall.SIGTERM)
	consumer.Fails(1, "interrupted")
	require.EqualValues(t, 3600e6, programs.Event(t, consumer, "waiting")["longest_us"])
}

// TestProducerSaysHowLong: without a bound there is none to be said.
func TestProducerSaysHowLong(t *testing.T) {
	programs.Parallel(t)
	cutest.ProvenOnSoft(t)
	s, producer := serving(t, "-consumers", "0")
	producer.WaitLine("  at " + s.Socket + " for consumers; ends when interrupted")
	endsInOrder(producer)
}
