package tests

import (
	"fmt"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
)

// TestConsumersAtOnce: several consumers attach and verify at the same time.
func TestConsumersAtOnce(t *testing.T) {
	for _, n := range []int{2, 4, 16} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			if n != 4 {
				cutest.ProvenOnSoft(t)
			}
			s := newScene(t)
			producer := s.producer("-json", "-size", "9MiB", "-chunk", "2MiB", "-consumers", strconv.Itoa(n))
			waitEvent(t, producer, "waiting")
			consumers := make([]*process, n)
			for i := range consumers {
				consumers[i] = s.consumer()
			}
			for _, c := range consumers {
				c.succeeds()
			}
			producer.succeeds()
			last, _ := producer.result()
			require.Equal(t, map[string]any{"verified": float64(n), "failed": 0.0}, last["consumers"])
		})
	}
}

// TestServeUntilSignal: with -consumers 0 a producer serves until it is asked
// to end, and that is success.
func TestServeUntilSignal(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		for _, consumers := range []int{0, 2} {
			t.Run(fmt.Sprintf("%s after %d consumers", sig, consumers), func(t *testing.T) {
				if sig != syscall.SIGTERM || consumers == 0 {
					cutest.ProvenOnSoft(t)
				}
				s := newScene(t)
				producer := s.producer("-json", "-consumers", "0", "-timeout", "10s")
				waitEvent(t, producer, "waiting")
				for range consumers {
					s.consumer().succeeds()
				}
				producer.signal(sig)
				producer.succeeds()
				last, _ := producer.result()
				require.Equal(t, map[string]any{"verified": float64(consumers), "failed": 0.0}, last["consumers"])
			})
		}
	}
}

// TestSignalTellsConsumers: a consumer that is attached when the producer is
// interrupted learns that the offer has ended, and exits 4.
func TestSignalTellsConsumers(t *testing.T) {
	s := newScene(t)
	producer := s.serving()
	consumer := s.relayed(t, nil, unsaid(typeVerdict)).consumer()
	consumer.waitLine("Received FD")
	consumer.stop()
	producer.signal(syscall.SIGTERM)
	producer.waitLine("Cleanup complete")
	producer.succeeds()
	require.NoError(t, resume(consumer))
	require.Equal(t, 4, consumer.wait(), consumer.dump())
}

// TestTooManyConsumers: one that comes when all places are taken is turned
// away, and those that have one are not disturbed.
func TestTooManyConsumers(t *testing.T) {
	s := newScene(t)
	producer := s.serving("-consumers", "1")
	att := s.mustAttach()
	s.consumer().fails(1, "has all it waits for: ")
	report(t, att, nil)
	producer.succeeds()
}

// TestRefusalHarmsNobody: a consumer that asks for more than is offered goes
// away with a reason, and the next is served.
func TestRefusalHarmsNobody(t *testing.T) {
	s := newScene(t)
	producer := s.serving("-access", "ro")
	s.consumer("-access", "rw").fails(1, "read-only", "read-write")
	producer.waitLine("  turned a peer away")
	s.consumer().succeeds()
	producer.succeeds()
}

// TestConsumerWaitsForItsProducer: a consumer that comes first finds its producer, also
// where a dead one has left its socket; both say where they meet, and for what and how long
// they wait.
func TestConsumerWaitsForItsProducer(t *testing.T) {
	for name, before := range map[string]func(s *scene){
		"nothing":        func(*scene) {},
		"a stale socket": func(s *scene) { s.kill(s.serving()) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			before(s)
			consumer := s.consumer("-timeout", "1m")
			consumer.waitLine("  no producer is there yet: waiting for one, for 1m0s at most")
			producer := s.producer("-timeout", "2m", "-consumers", "1")
			consumer.succeeds()
			producer.succeeds()
			require.Len(t, find(consumer, "  at "+s.socket), 1, consumer.dump())
			require.Len(t, find(producer, "  listening at "+s.socket), 1, producer.dump())
			require.Len(t, find(producer, "  at "+s.socket+" for 1 consumer; ends after 2m0s without one"), 1, producer.dump())
		})
	}
}

// TestConsumerNamesAMissingDirectory: a producer listens in no directory that is not there.
func TestConsumerNamesAMissingDirectory(t *testing.T) {
	s := newScene(t)
	dir := filepath.Join(filepath.Dir(s.socket), "none")
	c := s.consumer("-socket", dir+"/s", "-timeout", "100ms")
	c.fails(1, "no producer there within 100ms")
	require.Len(t, find(c, "  there is no directory "+dir+", so no producer can be there yet: waiting for one, for 100ms at most"), 1, c.dump())
}

// TestProducerSaysWhatASizeTakes: memory comes in multiples of the granularity.
func TestProducerSaysWhatASizeTakes(t *testing.T) {
	s := newScene(t)
	producer := s.serving("-size", "7")
	require.Len(t, find(producer, "  2 MiB of device memory: it comes in multiples of 2 MiB"), 1, producer.dump())
	s.consumer().succeeds()
	producer.succeeds()
}

// TestConsumerBesideItsProducer: "producer & consumer" works, whichever is faster.
func TestConsumerBesideItsProducer(t *testing.T) {
	for range 3 {
		s := newScene(t)
		producer, consumer := s.producer(), s.consumer()
		consumer.succeeds()
		producer.succeeds()
	}
}

// TestConsumerStopsWaiting: a signal ends the wait for a producer.
func TestConsumerStopsWaiting(t *testing.T) {
	cutest.ProvenOnSoft(t)
	consumer := newScene(t).consumer("-json", "-timeout", "1h")
	waitEvent(t, consumer, "waiting")
	consumer.signal(syscall.SIGTERM)
	consumer.fails(1, "interrupted")
	require.EqualValues(t, 3600e6, event(t, consumer, "waiting")["longest_us"])
}

// TestProducerSaysHowLong: without a bound there is none to be said.
func TestProducerSaysHowLong(t *testing.T) {
	cutest.ProvenOnSoft(t)
	s := newScene(t)
	producer := s.serving("-consumers", "0")
	producer.waitLine("  at " + s.socket + " for consumers; ends when interrupted")
	producer.signal(syscall.SIGTERM)
	producer.succeeds()
}
