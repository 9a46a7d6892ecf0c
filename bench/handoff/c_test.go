package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/bench/internal/rival"
)

// cRival builds the rival in C, on a driver of its own, which fails as it is told.
func cRival(t *testing.T) (started func(mode, fail string, flags ...string) *rival.Rival) {
	bin := filepath.Join(t.TempDir(), "c")
	out, err := exec.Command("gcc", "-O2", "-pthread", "-Wall", "-Wextra", "-Werror", "-I../c/stub", "-o", bin, "../c/handoff.c", "../c/stub/cuda.c").CombinedOutput()
	require.NoError(t, err, string(out))
	return func(mode, fail string, flags ...string) *rival.Rival {
		t.Setenv("STUB_FAIL", fail)
		for i := range flags {
			flags[i] = strings.ReplaceAll(flags[i], "SELF", bin)
		}
		r, err := rival.Start(t.Context(), "c", append([]string{bin, "-mode", mode}, flags...)...)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, r.Close()) })
		return r
	}
}

// Nobody runs hostfunc.c without a GPU.
func TestHostFuncCompiles(t *testing.T) {
	out, err := exec.Command("gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I../c/stub", "../c/hostfunc.c").CombinedOutput()
	require.NoError(t, err, string(out))
}

// Each mode does beforehand what it is said to, on one clock.
func TestCRival(t *testing.T) {
	started := cRival(t)
	for mode, chunks := range map[string][]int{"before": {1, 1, 3, 200}, "inside": {1, 1, 3, 200}, "legacy": {1, 1}} {
		r := started(mode, "")
		for _, n := range chunks {
			a, err := r.Ask(t.Context(), "handoff %d %d", n*granularity, n)
			require.NoError(t, err, mode)
			at := map[string]int64{}
			for _, s := range a.Steps {
				at[s.Side+" "+s.Name] = s.At
				if s.Name == "reply" {
					require.Equal(t, a.NS, s.At+s.NS, mode)
				}
			}
			require.Negative(t, at["producer create"], mode)
			require.Equal(t, mode == "before", at["producer export"] < 0, mode)
			require.Less(t, at["producer send"], at["consumer receive"], mode)
			require.Less(t, at["consumer import"], at["consumer ack"], mode)
			require.Equal(t, at["consumer ack"], at["producer reply"], mode)
		}
	}
	_, err := started("legacy", "").Ask(t.Context(), "handoff %d 2", 2*granularity)
	require.ErrorContains(t, err, "CHUNKS must be 1")
}

// A consumer that is started then takes the memory, says when it had a context, and what failed.
func TestCRivalFresh(t *testing.T) {
	started := cRival(t)
	r := started("before", "")
	for order := range orders {
		a, err := r.Ask(t.Context(), "fresh %d %d", 2*granularity, order)
		require.NoError(t, err)
		b := beginning{rival: cBefore, order: order}
		b.add(a)
		require.Positive(t, b.mapped[0])
		require.GreaterOrEqual(t, b.usable[0], b.mapped[0])
		at := map[string]rival.Step{}
		for _, s := range a.Steps {
			at[s.Side+" "+s.Name] = s
		}
		require.Positive(t, at["producer send"].At, "after the start of the process")
		require.Negative(t, at["producer export"].At)
		driver, context := at["consumer driver"], at["consumer context"]
		require.Positive(t, driver.At)
		require.LessOrEqual(t, driver.At+driver.NS, context.At)
		require.Len(t, b.driver, 1)
		require.Positive(t, context.At)
		switch order {
		case 0:
			require.LessOrEqual(t, context.At+context.NS, at["consumer import"].At)
		case 1:
			require.Less(t, context.At, at["consumer ack"].At+at["consumer ack"].NS)
		case 2:
			require.GreaterOrEqual(t, context.At, at["consumer ack"].At+at["consumer ack"].NS)
		}
	}
	_, err := r.Ask(t.Context(), "fresh %d 3", granularity)
	require.ErrorContains(t, err, "want: ")
	_, err = r.Ask(t.Context(), "handoff %d 1", granularity)
	require.NoError(t, err, "it lives on")
	for fail, want := range map[string]string{"cuMemImportFromShareableHandle": "consumer: cuMemImport", "salt": "salt: wrote ", "die": "the other process is gone"} {
		_, err := started("before", fail).Ask(t.Context(), "fresh %d 1", granularity)
		require.ErrorContains(t, err, want)
	}
}

// What is done otherwise in an experiment hands over, too, and says what fails.
func TestCRivalInExperiments(t *testing.T) {
	started := cRival(t)
	for _, flags := range []string{
		"-wait poll", "-wait thread", "-wait thread/sleep", "-wait sleep/spin", "-hop sleep", "-hop spin", "-wakes 2", "-threads 3/0",
		"-spinners 0/1", "-mappings 2", "-properties 1", "-readonly 1", "-current 0", "-with SELF:-mode:before:-half:consumer",
	} {
		t.Run(flags, func(t *testing.T) {
			r := started("before", "", strings.Fields(flags)...)
			for _, chunks := range []int{1, 1, 70} {
				a, err := r.Ask(t.Context(), "handoff %d %d", chunks*granularity, chunks)
				require.NoError(t, err)
				require.Positive(t, a.NS)
			}
			r = started("before", "salt", strings.Fields(flags)...)
			_, err := r.Ask(t.Context(), "handoff %d 1", granularity)
			require.ErrorContains(t, err, "rival c: salt: wrote ")
		})
	}
	_, err := started("before", "cuMemGetAllocationPropertiesFromHandle", "-properties", "1").Ask(t.Context(), "handoff %d 1", granularity)
	require.ErrorContains(t, err, "consumer: cuMemGetAllocationPropertiesFromHandle")
}

// What fails is said, and the next handoff can be tried, but for a consumer that
// is gone.
func TestCRivalThatFails(t *testing.T) {
	started := cRival(t)
	const request = "handoff 419430400 200"
	for fail, want := range map[string]string{
		"cuMemCreate":                    "rival c: cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2): out of \"memory\"",
		"cuMemExportToShareableHandle":   "rival c: cuMemExportToShareableHandle: ",
		"cuMemImportFromShareableHandle": "rival c: consumer: cuMemImportFromShareableHandle: ",
		"cuMemcpyDtoH":                   "rival c: consumer: cuMemcpyDtoH of the first bytes: ",
		"salt":                           "rival c: salt: wrote ",
	} {
		r := started("before", fail)
		for range 2 {
			_, err := r.Ask(t.Context(), request)
			require.ErrorContains(t, err, want)
		}
	}
	r := started("inside", "die")
	_, err := r.Ask(t.Context(), request)
	require.ErrorContains(t, err, "the other process is gone")
	_, err = r.Ask(t.Context(), request)
	require.ErrorContains(t, err, "it ended: exit status 1")
}
