package tests

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
)

var steps = map[string][]string{
	"producer": {"driver", "context", "create", "reserve", "map", "access", "fill", "export", "serve"},
	"consumer": {"driver", "context", "connect", "receive", "import", "reserve", "map", "access", "attach", "verify", "report"},
}

// TestJSON: every line is an object and the last is the result.
func TestJSON(t *testing.T) {
	s := newScene(t)
	producer := s.producer("-json", "-size", "3MiB")
	waitEvent(t, producer, "waiting")
	consumer := s.consumer("-json")
	consumer.succeeds()
	producer.succeeds()

	device := cutest.Device(t)
	for _, p := range []*process{producer, consumer} {
		last, all := p.result()
		require.Equal(t, "driver", all[0]["event"], p.dump())
		require.Equal(t, true, last["ok"])
		require.EqualValues(t, 3<<20, last["size"])
		require.EqualValues(t, 4<<20, last["aligned"])
		require.EqualValues(t, 0, last["device"])
		require.Equal(t, device.UUID().String(), last["uuid"])
		require.Equal(t, kindName(), last["driver"])
		require.NotContains(t, last, "error")
		took, ok := last["steps_us"].(map[string]any)
		require.True(t, ok, p.dump())
		for _, step := range steps[p.name] {
			require.Greater(t, took[step], 0.0, step)
		}
	}
	last, _ := producer.result()
	require.Equal(t, map[string]any{"verified": 1.0, "failed": 0.0}, last["consumers"])
}

// TestJSONOfFailure: the result says what went wrong, and the exit code.
func TestJSONOfFailure(t *testing.T) {
	s := newScene(t)
	producer := s.producer("-json")
	waitEvent(t, producer, "waiting")
	consumer := s.consumer("-json", "-expect-salt", "1")
	consumer.fails(1)
	producer.fails(1)
	lonely := s.consumer("-json", "-timeout", "1s")
	lonely.fails(1)
	usage := s.producer("-json", "-consumers", "-1")
	usage.fails(2)

	for p, code := range map[*process]int{producer: 1, consumer: 1, lonely: 1, usage: 2} {
		last, _ := p.result()
		require.Equal(t, false, last["ok"])
		require.EqualValues(t, code, last["exit"])
		require.Contains(t, p.err.all()[0], last["error"])
	}
}
