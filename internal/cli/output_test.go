package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/vmm"
)

// objects reads one JSON object a line.
func objects(t *testing.T, out string) (all []map[string]any) {
	t.Helper()
	require.True(t, out == "" || strings.HasSuffix(out, "\n"), "a line that is not ended")
	for line := range strings.Lines(out) {
		var o map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &o), "%q", line)
		all = append(all, o)
	}
	return all
}

func TestTextIsForPeople(t *testing.T) {
	var out bytes.Buffer
	o := newOutput(&out, false)
	o.Say("event", Fields{"n": 1}, "Line %d: %s", 1, "100 %")
	o.Progress("filling", 1, 2)
	o.SayDurations()
	o.Step("create", 1500*time.Nanosecond)
	o.Step("map", time.Millisecond)
	o.Step("create", 500*time.Nanosecond)
	o.SayDurations()
	o.result(Fields{"x": 1}, errors.New("x"))
	require.Equal(t, "Line 1: 100 %\n  durations in µs: create 2, map 1000\n", out.String(), "no progress on what is no terminal")
}

func TestJSONIsOneObjectALine(t *testing.T) {
	var out bytes.Buffer
	o := newOutput(&out, true)
	o.Say("started", nil, "Text %s", "that is not printed")
	o.Say("copied", Fields{"bytes": uint64(1) << 40, "name": "a \"quoted\"\nname"}, "x")
	o.Progress("filling", 1, 2)
	o.Step("create", time.Microsecond)
	require.NoError(t, o.Timed("map", func() error { return nil }))
	require.ErrorIs(t, o.Timed("map", func() error { return cu.ErrClosed }), cu.ErrClosed)
	o.SayDurations()
	o.Say("odd", Fields{"f": func() {}}, "x")
	o.result(Fields{"size": 7}, nil)
	all := objects(t, out.String())
	require.Len(t, all, 4)
	require.Equal(t, map[string]any{"event": "started"}, all[0])
	require.Equal(t, map[string]any{"event": "copied", "bytes": float64(1 << 40), "name": "a \"quoted\"\nname"}, all[1])
	require.Equal(t, "odd", all[2]["event"])
	require.Contains(t, all[2]["error"], "unsupported type")
	require.Equal(t, true, all[3]["ok"])
	require.Equal(t, "result", all[3]["event"])
	require.EqualValues(t, 7, all[3]["size"])
	steps := all[3]["steps_us"].(map[string]any)
	require.EqualValues(t, 1, steps["create"])
	require.Positive(t, steps["map"])
}

func TestResultOfAFailureHoldsItsExitCode(t *testing.T) {
	var out bytes.Buffer
	newOutput(&out, true).result(nil, errors.Join(errors.New("a"), Machinef("b")))
	all := objects(t, out.String())
	require.Len(t, all, 1)
	require.Equal(t, false, all[0]["ok"])
	require.Equal(t, "a; b", all[0]["error"])
	require.EqualValues(t, ExitMachine, all[0]["exit"])
}

func TestLinesOfManyGoroutinesStayWhole(t *testing.T) {
	for _, asJSON := range []bool{true, false} {
		var out bytes.Buffer
		o := newOutput(&out, asJSON)
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				for i := range 50 {
					o.Say("tick", Fields{"g": g, "i": i}, "tick %d %d", g, i)
					o.Step("tick", time.Microsecond)
					o.Progress("x", uint64(i), 50)
				}
			})
		}
		wg.Wait()
		require.Equal(t, 400, strings.Count(out.String(), "\n"))
		if asJSON {
			require.Len(t, objects(t, out.String()), 400)
		}
		require.InDelta(t, 400, o.steps["tick"], 0.1)
	}
}

// On a terminal, progress that takes longer than a second has a line of its
// own, which goes before the next.
func TestProgressLineIsTakenAway(t *testing.T) {
	var out bytes.Buffer
	o := newOutput(&out, false)
	o.terminal = true
	o.Progress("filling", 0, 4<<20)
	require.Empty(t, out.String(), "not at once")
	o.started["filling"] = o.started["filling"].Add(-2 * time.Second)
	o.Progress("filling", 1<<20, 4<<20)
	o.Progress("filling", 2<<20, 4<<20) // too soon after the last
	o.Say("x", nil, "next")
	o.Say("x", nil, "and next")
	require.Equal(t, "\r\x1b[Kfilling: 1 MiB of 4 MiB (25 %)\r\x1b[Knext\nand next\n", out.String())

	out.Reset() // what is begun now has not taken long, whatever came before
	o.shown = time.Time{}
	o.Progress("verifying", 1, 2)
	require.Empty(t, out.String())
	o.started["odd"] = time.Now().Add(-time.Minute)
	o.Progress("odd", 1, 0)
	require.Contains(t, out.String(), "odd: 1 bytes of 0 bytes")
}

func TestStepsArePrintedAndTimed(t *testing.T) {
	var out bytes.Buffer
	a := New("prog", "does.", &out)
	a.Output = newOutput(&out, false)
	steps := a.Steps(func(s vmm.Step) string {
		if s.Op == vmm.OpReserve {
			return "Reserved at " + s.Ptr.String() + " 100%"
		}
		return ""
	})
	steps(vmm.Step{Op: vmm.OpCreate, Took: time.Millisecond})
	steps(vmm.Step{Op: vmm.OpReserve, Ptr: 0x1000, Took: time.Microsecond})
	require.Equal(t, "Reserved at 0x1000 100%\n", out.String())
	require.Equal(t, fmt.Sprint([]string{"create", "reserve"}), fmt.Sprint(a.order))
}
