package tests

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func visible(uuids string) []string { return []string{"CUDA_VISIBLE_DEVICES=" + uuids} }

// TestFault41_DevicesInAnotherOrder: what is device 0 to the producer is device 1
// to the consumer. The UUID decides, and an ordinal that does not fit is an error
// that says so.
//
//fault:skip takes two devices
func TestFault41_DevicesInAnotherOrder(t *testing.T) {
	a, b := uuids(t)
	s := newScene(t)
	producer := s.start("producer", visible(a+","+b), "-consumers", "0")
	producer.waitLine("Waiting for consumer connection...")

	consumer := s.start("consumer", visible(b+","+a), "-json")
	consumer.succeeds()
	last, _ := consumer.result()
	require.Equal(t, a, last["uuid"])
	require.EqualValues(t, 1, last["device"])
	s.start("consumer", visible(b+","+a), "-device", "1").succeeds()
	s.start("consumer", visible(b+","+a), "-device", a).succeeds()

	s.start("consumer", visible(b+","+a), "-device", "0").
		fails(1, "memory of another device", "it is on "+a, "("+b+") was asked for", "leave --device out")
	s.start("consumer", visible(a+","+b)).succeeds()
	producer.signal(syscall.SIGTERM)
	require.Equal(t, 1, producer.wait(), producer.dump())
}

// TestFault42_HiddenDevice: the consumer does not see the device that the memory
// is on, and says so. The producer serves who does.
//
//fault:skip takes two devices
func TestFault42_HiddenDevice(t *testing.T) {
	t.Run("another is visible", func(t *testing.T) {
		a, b := uuids(t)
		s := newScene(t)
		producer := s.start("producer", visible(a), "-consumers", "0")
		producer.waitLine("Waiting for consumer connection...")
		s.start("consumer", visible(b)).fails(1, "not visible to this process", "CUDA_VISIBLE_DEVICES", "no device "+a+" here; visible devices: ", b)
		s.start("consumer", visible(b), "-device", a).fails(1, "no device "+a+" here; visible devices: ", b)
		s.start("consumer", visible(a)).succeeds()
		producer.signal(syscall.SIGTERM)
		require.Equal(t, 1, producer.wait(), producer.dump())
	})
	t.Run("none is visible", func(t *testing.T) {
		s := newScene(t)
		producer := s.serving()
		for _, none := range []string{"", "-1"} {
			s.start("consumer", visible(none)).fails(3, "CUDA_ERROR_NO_DEVICE (100)", "CUDA_VISIBLE_DEVICES")
		}
		s.consumer().succeeds()
		producer.succeeds()
	})
}
