package tests

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
)

//fault:only G
func TestSizes(t *testing.T) {
	for _, c := range []struct {
		size, chunk uint64
		needsGPU    bool
	}{
		{size: 1},
		{size: 3},
		{size: 5},
		{size: 4 * kib},
		{size: mib},
		{size: 2 * mib},
		{size: 2*mib + 1},
		{size: 64*mib + 3}, // crosses a piece of filling and checking
		{size: 256 * mib},
		{size: 1, chunk: 4 * mib},
		{size: 10*mib + 1, chunk: 2 * mib},
		{size: 7 * mib, chunk: 3 * mib}, // chunks are aligned, too
		{size: 64 * 2 * mib, chunk: 2 * mib},
		{size: 64*2*mib + 1, chunk: 1},        // one more than a record holds
		{size: 140 * 2 * mib, chunk: 2 * mib}, // several records
		{size: 2*gib + 1, needsGPU: true},
		{size: 4 * gib, needsGPU: true},
		{size: 4*gib + 5, chunk: 512 * mib, needsGPU: true},
		{size: 64 * gib, needsGPU: true},
	} {
		name := fmt.Sprintf("%d in chunks of %d", c.size, c.chunk)
		if c.size > 1<<31 {
			name = "fault 69: " + name // 32 bits do not hold it
		}
		t.Run(name, func(t *testing.T) {
			if c.needsGPU {
				needGPU(t, "the software driver's memory is the host's, and it is slow")
			} else if c.size <= 4*kib || c.size == 2*mib {
				cutest.ProvenOnSoft(t)
			}
			if c.size > 32*gib {
				cutest.Alone(t, "it takes much of the device's memory")
			}
			handOver(t, c.size, c.chunk)
		})
	}
}

// handOver has a producer and a consumer agree on size bytes.
func handOver(t *testing.T, size, chunk uint64) {
	s := newScene(t)
	args := []string{"-json", "-size", decimal(size)}
	if chunk != 0 {
		args = append(args, "-chunk", decimal(chunk))
	}
	producer := s.producer(args...)
	waitEvent(t, producer, "waiting")
	consumer := s.consumer("-json")
	consumer.succeeds()
	producer.succeeds()

	granularity := uint64(event(t, producer, "granularity")["bytes"].(float64))
	unit := alignUp(max(chunk, 1), granularity)
	aligned := alignUp(size, unit)
	fds := 1
	if chunk != 0 {
		fds = int(aligned / unit)
	}
	require.EqualValues(t, fds, event(t, producer, "export")["chunks"])
	require.EqualValues(t, fds, event(t, consumer, "received")["fds"])
	require.EqualValues(t, (size+3)/4, event(t, producer, "generated")["integers"])
	require.EqualValues(t, (size+3)/4, event(t, consumer, "verified")["integers"])
	read := map[string]string{"cpu": "copied", "gpu": "compared"}[defaultWay]
	require.EqualValues(t, size, event(t, consumer, read)["bytes"])
	for _, p := range []*process{producer, consumer} {
		last, _ := p.result()
		require.EqualValues(t, size, last["size"])
		require.EqualValues(t, aligned, last["aligned"])
	}
}

// TestSizeUnits: what a person writes is what is shared.
func TestSizeUnits(t *testing.T) {
	cutest.ProvenOnSoft(t)
	for text, bytes := range map[string]int{"4096": 4096, "3KiB": 3 << 10, "2MiB": 2 << 20, "17B": 17} {
		t.Run(text, func(t *testing.T) {
			s := newScene(t)
			producer := s.serving("-size", text)
			require.Len(t, find(producer, fmt.Sprintf("Buffer size: %d bytes, ", bytes)), 1, producer.dump())
			s.consumer().succeeds()
			producer.succeeds()
		})
	}
}
