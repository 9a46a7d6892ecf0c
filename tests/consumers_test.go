package tests

import (
	"fmt"
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
	s.consumer().fails(1, "consumers it waits for")
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
