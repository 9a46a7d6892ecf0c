package handoff

import (
	"syscall"
	"testing"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"
)

func visible(uuids string) []string { return []string{"CUDA_VISIBLE_DEVICES=" + uuids} }

// TestFault41_DevicesInAnotherOrder: what is device 0 to the producer is device 1
// to the consumer. The UUID decides, and an ordinal that does not fit is an error
// that says so.
func TestFault41_DevicesInAnotherOrder(t *testing.T) {
	programs.Parallel(t)
	a, b := programs.TwoUUIDs(t)
	s := programs.NewScene(t)
	producer := s.Start("producer", visible(a+","+b), "-consumers", "0")
	producer.WaitLine("Waiting for consumer connection...")

	consumer := s.Start("consumer", visible(b+","+a), "-json")
	consumer.Succeeds()
	last, _ := consumer.Result()
	require.Equal(t, a, last["uuid"])
	require.EqualValues(t, 1, last["device"])
	s.Start("consumer", visible(b+","+a), "-device", "1").Succeeds()
	s.Start("consumer", visible(b+","+a), "-device", a).Succeeds()

	s.Start("consumer", visible(b+","+a), "-device", "0").
		Fails(1, "memory of another device", "it is on "+a, "("+b+") was asked for", "leave --device out")
	s.Start("consumer", visible(a+","+b)).Succeeds()
	producer.Signal(syscall.SIGTERM)
	require.Equal(t, 1, producer.Wait(), producer.Dump())
}

// TestFault42_HiddenDevice: the consumer does not see the device that the memory
// is on, and says so. The producer serves who does.
func TestFault42_HiddenDevice(t *testing.T) {
	programs.Parallel(t)
	t.Run("another is visible", func(t *testing.T) {
		a, b := programs.TwoUUIDs(t)
		s := programs.NewScene(t)
		producer := s.Start("producer", visible(a), "-consumers", "0")
		producer.WaitLine("Waiting for consumer connection...")
		s.Start("consumer", visible(b)).Fails(1, "not visible to this process", "CUDA_VISIBLE_DEVICES", "no device "+a+" here; visible devices: ", b)
		s.Start("consumer", visible(b), "-device", a).Fails(1, "no device "+a+" here; visible devices: ", b)
		s.Start("consumer", visible(a)).Succeeds()
		producer.Signal(syscall.SIGTERM)
		require.Equal(t, 1, producer.Wait(), producer.Dump())
	})
	t.Run("none is visible", func(t *testing.T) {
		s, producer := serving(t)
		for _, none := range []string{"", "-1"} {
			s.Start("consumer", visible(none)).Fails(3, "CUDA_ERROR_NO_DEVICE (100)", "CUDA_VISIBLE_DEVICES")
		}
		s.Consumer().Succeeds()
		producer.Succeeds()
	})
}
