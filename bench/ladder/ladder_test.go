package main

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/internal/cli"
)

// handOff has a producer with these flags make two handoffs on the software driver.
func handOff(t *testing.T, flags ...string) []rival.Answer {
	var stdout, stderr strings.Builder
	code := run(append([]string{"-driver", "soft"}, flags...), strings.NewReader("handoff 2097152 1\nhandoff 4194304 1\n"), &stdout, &stderr)
	require.Equal(t, cli.ExitOK, code, stderr.String())
	var all []rival.Answer
	for line := range strings.Lines(stdout.String()) {
		var a rival.Answer
		require.NoError(t, json.Unmarshal([]byte(line), &a))
		require.Empty(t, a.Error)
		all = append(all, a)
	}
	require.Len(t, all, 3)
	require.True(t, all[0].Ready)
	return all[1:]
}

// Each rung hands over, and its steps are in the order of those of C.
func TestRungs(t *testing.T) {
	for _, flags := range []string{
		"", "-wait block", "-wait poll", "-wait sock", "-wait raw/poll", "-wait poll/raw", "-lock no", "-lock yes/no",
		"-bind yes", "-calls vmm", "-hop yes", "-properties", "-readonly",
		"-wait sock -deadlines each -calls vmm -readonly -lock no -hop yes",
		"-bare", "-bare -calls cu", "-calls raw/cu", "-wait spin", "-wait spin -rehearse -calls vmm", "-rehearse", "-rehearse -bare",
		"-connect", "-wait sock -deadlines handoff -connect -lock no",
	} {
		t.Run(flags, func(t *testing.T) {
			for _, a := range handOff(t, strings.Fields(flags)...) {
				requireOrder(t, a)
			}
		})
	}
}

func requireOrder(t *testing.T, a rival.Answer) {
	at := map[string]int64{}
	for _, s := range a.Steps {
		at[s.Side+" "+s.Name] = s.At
		if s.Name == "reply" {
			require.Equal(t, a.NS, s.At+s.NS)
		}
	}
	require.Negative(t, at["producer create"])
	require.Negative(t, at["producer export"])
	require.Less(t, at["producer send"], at["consumer receive"])
	require.Less(t, at["consumer import"], at["consumer access"])
	require.Less(t, at["consumer access"], at["consumer ack"])
	require.Equal(t, at["consumer ack"], at["producer reply"])
}

// The messages are those of C: a consumer in C, on a driver that takes any
// descriptor for memory, finds the salts of a producer in Go.
func TestConsumerInC(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "c")
	out, err := exec.Command("gcc", "-O2", "-pthread", "-I../c/stub", "-o", bin, "../c/handoff.c", "../c/stub/cuda.c").CombinedOutput()
	require.NoError(t, err, string(out))
	for _, a := range handOff(t, "-with", bin+":-mode:before:-half:consumer") {
		requireOrder(t, a)
	}
	r, err := rival.Start(t.Context(), "c", bin, "-mode", "before", "-with", self(t)+":-driver:soft:-half:consumer")
	require.NoError(t, err)
	_, err = r.Ask(t.Context(), "handoff 2097152 1")
	require.ErrorContains(t, err, "consumer: cuMemImportFromShareableHandle: ", "the software driver takes its own memory only")
	require.NoError(t, r.Close())
}

func self(t *testing.T) string {
	bin := filepath.Join(t.TempDir(), "ladder")
	out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput()
	require.NoError(t, err, string(out))
	return bin
}

func TestWrongFlags(t *testing.T) {
	for _, args := range [][]string{{"-wait", "nap"}, {"-wait", "raw/raw/raw"}, {"-half", "both"}, {"-deadlines", "some"}, {"-hop", "yes", "-wait", "spin"}, {"more"}} {
		var stdout, stderr strings.Builder
		require.Equal(t, cli.ExitUsage, run(args, nil, &stdout, &stderr), args)
		require.Equal(t, 1, strings.Count(stderr.String(), "\n"), stderr.String())
	}
}
