package handoff

import (
	"fmt"
	"testing"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
)

func TestSizes(t *testing.T) {
	programs.Parallel(t)
	for _, c := range []struct {
		size, chunk uint64
		needsGPU    bool
	}{
		{size: 1},
		{size: 3},
		{size: 5},
		{size: 4 * programs.Kib},
		{size: programs.Mib},
		{size: 2 * programs.Mib},
		{size: 2*programs.Mib + 1},
		{size: 64*programs.Mib + 3}, // crosses a piece of filling and checking
		{size: 256 * programs.Mib},
		{size: 1, chunk: 4 * programs.Mib},
		{size: 10*programs.Mib + 1, chunk: 2 * programs.Mib},
		{size: 7 * programs.Mib, chunk: 3 * programs.Mib}, // chunks are aligned, too
		{size: 64 * 2 * programs.Mib, chunk: 2 * programs.Mib},
		{size: 64*2*programs.Mib + 1, chunk: 1},                 // one more than a record holds
		{size: 140 * 2 * programs.Mib, chunk: 2 * programs.Mib}, // several records
		{size: 2*programs.Gib + 1, needsGPU: true},
		{size: 4 * programs.Gib, needsGPU: true},
		{size: 4*programs.Gib + 5, chunk: 512 * programs.Mib, needsGPU: true},
		{size: 64 * programs.Gib, needsGPU: true},
	} {
		name := fmt.Sprintf("%d in chunks of %d", c.size, c.chunk)
		if c.size > 1<<31 {
			name = "fault 69: " + name // 32 bits do not hold it
		}
		t.Run(name, func(t *testing.T) {
			programs.Parallel(t)
			if c.needsGPU {
				programs.NeedGPU(t, "the software driver's memory is the host's, and it is slow")
			} else if c.size <= 4*programs.Kib || c.size == 2*programs.Mib {
				cutest.ProvenOnSoft(t)
			}
			if c.size > 32*programs.Gib {
				cutest.Alone(t, "it takes much of the device's memory")
			}
			handOver(t, c.size, c.chunk)
		})
	}
}

// handOver has a producer and a consumer agree on size bytes.
func handOver(t *testing.T, size, chunk uint64) {
	s := programs.NewScene(t)
	args := []string{"-json", "-size", programs.Decimal(size)}
	if chunk != 0 {
		args = append(args, "-chunk", programs.Decimal(chunk))
	}
	producer := s.Producer(args...)
	programs.WaitEvent(t, producer, "waiting")
	consumer := s.Consumer("-json")
	consumer.Succeeds()
	producer.Succeeds()

	granularity := uint64(programs.Event(t, producer, "granularity")["bytes"].(float64))
	unit := programs.AlignUp(max(chunk, 1), granularity)
	aligned := programs.AlignUp(size, unit)
	fds := 1
	if chunk != 0 {
		fds = int(aligned / unit)
	}
	require.EqualValues(t, fds, programs.Event(t, producer, "export")["chunks"])
	require.EqualValues(t, fds, programs.Event(t, consumer, "received")["fds"])
	require.EqualValues(t, (size+3)/4, programs.Event(t, producer, "generated")["integers"])
	require.EqualValues(t, (size+3)/4, programs.Event(t, consumer, "verified")["integers"])
	read := map[string]string{"cpu": "copied", "gpu": "compared"}[defaultWay]
	require.EqualValues(t, size, programs.Event(t, consumer, read)["bytes"])
	for _, p := range []*programs.Process{producer, consumer} {
		last, _ := p.Result()
		require.EqualValues(t, size, last["size"])
		require.EqualValues(t, aligned, last["aligned"])
	}
}

// TestSizeUnits: what a person writes is what is shared.
func TestSizeUnits(t *testing.T) {
	programs.Parallel(t)
	cutest.ProvenOnSoft(t)
	for text, bytes := range map[string]int{"4096": 4096, "3KiB": 3 << 10, "2MiB": 2 << 20, "17B": 17} {
		t.Run(text, func(t *testing.T) {
			s := programs.NewScene(t)
			producer := s.Serving("-size", text)
			require.Len(t, programs.Find(producer, fmt.Sprintf("Buffer size: %d bytes, ", bytes)), 1, producer.Dump())
			s.Consumer().Succeeds()
			producer.Succeeds()
		})
	}
}
