package app

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/soft"
	"github.com/gpufd/gpufd/internal/cli"
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
	require.Equal(t, "Line 1: 100 %\n  durations: create 2µs, map 1ms\n", out.String(), "no progress on what is no terminal")
}

func TestWaitingIsSaidAfterASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		stop := Waiting(&out, "waiting for it")
		time.Sleep(progressAfter - 1)
		stop()
		time.Sleep(time.Minute)
		require.Empty(t, out.String(), "the wait was short")
		stop = Waiting(&out, "waiting for it")
		time.Sleep(time.Minute)
		stop()
		stop()
		require.Equal(t, "waiting for it\n", out.String())
	})
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
	newOutput(&out, true).result(nil, errors.Join(errors.New("a"), cli.Machinef("b")))
	all := objects(t, out.String())
	require.Len(t, all, 1)
	require.Equal(t, false, all[0]["ok"])
	require.Equal(t, "a; b", all[0]["error"])
	require.EqualValues(t, cli.ExitMachine, all[0]["exit"])
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
func TestProgressLineIsTakenAway(t *testing.T) { synctest.Test(t, testProgressLine) }

func testProgressLine(t *testing.T) {
	var out bytes.Buffer
	o := newOutput(&out, false)
	o.columns = func() int { return 80 }
	o.Progress("filling", 0, 4<<20)
	require.Empty(t, out.String(), "not at once")
	time.Sleep(2 * time.Second)
	o.Progress("filling", 1<<20, 4<<20)
	o.Progress("filling", 2<<20, 4<<20) // too soon after the last
	o.Say("x", nil, "next")
	o.Say("x", nil, "and next")
	require.Equal(t, "\r\x1b[Kfilling: 1 MiB of 4 MiB (25 %), 512 KiB/s, 6s left\r\x1b[Knext\nand next\n", out.String())

	out.Reset() // what is begun now has not taken long, whatever came before
	o.shown = time.Time{}
	o.Progress("verifying", 1, 2)
	require.Empty(t, out.String())
	o.started["odd"] = begun{at: time.Now().Add(-time.Minute)}
	o.Progress("odd", 1, 0)
	require.Contains(t, out.String(), "odd: 1 byte of 0 bytes")
	require.Equal(t, "16777216 TiB of 1 byte (100 %)", cli.PartOf(math.MaxUint64, 1))
	require.Equal(t, "8388608 TiB of 16777216 TiB (50 %)", cli.PartOf(1<<63, math.MaxUint64))
}

// The rest takes as long as what was done did; where that says nothing, nothing is said.
func TestPace(t *testing.T) {
	for _, c := range []struct {
		done, rest uint64
		took       time.Duration
		want       string
	}{
		{1 << 30, 3 << 30, 2 * time.Second, ", 512 MiB/s, 6s left"},
		{1 << 30, 100 << 30, time.Second, ", 1 GiB/s, 1m40s left"},
		{1 << 30, 0, time.Second, ", 1 GiB/s, 0s left"},
		{0, 1 << 30, time.Second, ""},
		{1, 1 << 30, time.Minute, ""},
		{1 << 30, 1 << 30, 0, ""},
		{2, math.MaxUint64, time.Second, ""},
		{math.MaxUint64, math.MaxUint64, time.Second, ""},
	} {
		require.Equal(t, c.want, pace(c.done, c.rest, c.took))
	}
}

// A line of progress never wraps: it would not be taken away.
func TestProgressNeverWraps(t *testing.T) {
	var out bytes.Buffer
	o := newOutput(&out, false)
	o.columns = func() int { return 12 }
	for line, want := range map[string]string{
		"short": "short", "eleven runs": "eleven runs", "and more than that": "and more th",
		"a\nb\x1b[31mc": "a?b?[31mc", "文件文件文件": "文件文件文", "ääääääääääää": "äääääääääää",
	} {
		out.Reset()
		o.show(line)
		require.Equal(t, "\r\x1b[K"+want, out.String())
	}
}

// Busy shows a line that is rewritten each second and removed in the end. It is
// no sign of life, and nothing where there is no terminal.
func TestBusyIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		o := newOutput(&out, false)
		said := func() string {
			synctest.Wait()
			o.mu.Lock()
			defer o.mu.Unlock()
			defer out.Reset()
			return out.String()
		}
		o.Busy(func() string { t.Error("nobody sees it"); return "" })()
		o.columns = func() int { return 80 }
		signs := 0
		o.alive = func() { signs++ }
		stop := o.Busy(func() string { return "waiting for it" })
		time.Sleep(2500 * time.Millisecond)
		require.Equal(t, "\r\x1b[Kwaiting for it (1s)\r\x1b[Kwaiting for it (2s)", said())
		require.Zero(t, signs, "else a call that hangs would not be noticed")
		o.Say("x", nil, "line")
		require.Equal(t, "\r\x1b[Kline\n", said())
		time.Sleep(time.Second)
		require.Equal(t, "\r\x1b[Kwaiting for it (3s)", said(), "again below what was said meanwhile")
		stop()
		stop()
		require.Equal(t, "\r\x1b[K", said())
		again := o.Busy(func() string { return "more" })
		o.result(nil, nil)
		time.Sleep(5 * time.Second)
		require.Empty(t, said(), "not behind the result")
		again()
	})
}

func TestBriefDurations(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 50: "50ns", 331_400: "331µs", 1_069_000: "1.07ms", 999_900_000: "1s", 5_123 * time.Millisecond: "5.12s", 65_300 * time.Millisecond: "1m5.3s",
	} {
		require.Equal(t, want, Brief(d))
	}
}

func TestStepsArePrintedAndTimed(t *testing.T) {
	var out bytes.Buffer
	a := New("prog", "does.", &out)
	a.Output = newOutput(&out, false)
	drv, err := cu.Open(cu.WithResolver(soft.Resolver), cu.WithHook(a.calls.hook))
	require.NoError(t, err)
	dev, err := drv.Device(0)
	require.NoError(t, err)
	buf, err := vmm.New(dev, 1)
	require.NoError(t, err)
	a.SayCreated(buf)
	require.Equal(t, fmt.Sprintf("Created physical memory allocation\nReserved virtual address space at %s\n"+
		"Mapped physical memory to virtual address\nSet read/write access permissions\n", buf.Ptr()), out.String())
	require.Equal(t, []string{"create", "reserve", "map", "access"}, a.order)
	require.Positive(t, a.calls.took["create"])
	require.NoError(t, buf.Close())
}

// The reason why a context was lost has a line of its own.
func TestForPeople(t *testing.T) {
	lost := fmt.Errorf("block 0 read 0x10\n%w; begin anew", &cu.Error{Op: "cuStreamSynchronize", Result: cu.ErrIllegalAddress})
	require.Regexp(t, "^block 0 read 0x10\n  CUDA_ERROR_ILLEGAL_ADDRESS [^\n]*: the context is lost\n  [^\n]*; begin anew$", forPeople(lost))
	require.Equal(t, "a; b", forPeople(errors.New("a\nb")))
}
