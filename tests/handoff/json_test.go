package handoff

import (
	"testing"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
)

var steps = map[string][]string{
	"producer": {"driver", "context", "create", "reserve", "map", "access", "fill", "export", "serve"},
	"consumer": {"driver", "context", "connect", "receive", "import", "reserve", "map", "access", "attach", "verify", "report"},
}

// TestJSON: every line is an object and the last is the result.
func TestJSON(t *testing.T) {
	programs.Parallel(t)
	s := programs.NewScene(t)
	producer := s.Producer("-json", "-size", "3MiB")
	programs.WaitEvent(t, producer, "waiting")
	consumer := s.Consumer("-json")
	consumer.Succeeds()
	producer.Succeeds()

	device := cutest.Device(t)
	for _, p := range []*programs.Process{producer, consumer} {
		last, all := p.Result()
		require.Equal(t, "driver", all[0]["event"], p.Dump())
		require.Equal(t, true, last["ok"])
		require.EqualValues(t, 3<<20, last["size"])
		require.EqualValues(t, 4<<20, last["aligned"])
		require.EqualValues(t, 0, last["device"])
		require.Equal(t, device.UUID().String(), last["uuid"])
		require.Equal(t, programs.KindName(), last["driver"])
		require.NotContains(t, last, "error")
		took, ok := last["steps_us"].(map[string]any)
		require.True(t, ok, p.Dump())
		for _, step := range steps[p.Name] {
			require.Greater(t, took[step], 0.0, step)
		}
	}
	last, _ := producer.Result()
	require.Equal(t, map[string]any{"verified": 1.0, "failed": 0.0}, last["consumers"])
}

// TestJSONOfFailure: the result says what went wrong, and the exit code.
func TestJSONOfFailure(t *testing.T) {
	programs.Parallel(t)
	s := programs.NewScene(t)
	producer := s.Producer("-json")
	programs.WaitEvent(t, producer, "waiting")
	consumer := s.Consumer("-json", "-expect-salt", "1")
	consumer.Fails(1)
	producer.Fails(1)
	lonely := s.Consumer("-json", "-timeout", "200ms")
	lonely.Fails(1)
	usage := s.Producer("-json", "-consumers", "-1")
	usage.Fails(2)

	for p, code := range map[*programs.Process]int{producer: 1, consumer: 1, lonely: 1, usage: 2} {
		last, _ := p.Result()
		require.Equal(t, false, last["ok"])
		require.EqualValues(t, code, last["exit"])
		require.Contains(t, p.Err.All()[0], last["error"])
	}
}
