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
		{size: 4 * programs.KiB},
		{size: programs.MiB},
		{size: 2 * programs.MiB},
		{size: 2*programs.MiB + 1},
		{size: 64*programs.MiB + 3}, // crosses a piece of filling and checking
		{size: 256 * programs.MiB},
		{size: 1, chunk: 4 * programs.MiB},
		{size: 10*programs.MiB + 1, chunk: 2 * programs.MiB},
		{size: 7 * programs.MiB, chunk: 3 * programs.MiB}, // chunks are aligned, too
		{size: 64 * 2 * programs.MiB, chunk: 2 * programs.MiB},
		{size: 64*2*programs.MiB + 1, chunk: 1},                 // one more than a record holds
		{size: 140 * 2 * programs.MiB, chunk: 2 * programs.MiB}, // several records
		{size: 2*programs.GiB + 1, needsGPU: true},
		{size: 4 * programs.GiB, needsGPU: true},
		{size: 4*programs.GiB + 5, chunk: 512 * programs.MiB, needsGPU: true},
		{size: 64 * programs.GiB, needsGPU: true},
	} {
		name := fmt.Sprintf("%d in chunks of %d", c.size, c.chunk)
		if c.size > 1<<31 {
			name = "fault 69: " + name // 32 bits do not hold it
		}
		t.Run(name, func(t *testing.T) {
			programs.Parallel(t)
			if c.needsGPU {
				programs.SkipOnSoft(t, "the software driver's memory is the host's, and it is slow")
			} else if c.size <= 4*programs.KiB || c.size == 2*programs.MiB {
				cutest.ProvenOnSoft(t)
			}
			if c.size > 32*programs.GiB {
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
