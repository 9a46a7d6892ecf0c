package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/bench/internal/report"
	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/bench/internal/stats"
	"github.com/gpufd/gpufd/internal/cli"
)

// ours is our rival: this binary.
var ours = os.Args[0]

func buildC(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "c")
	out, err := exec.CommandContext(t.Context(), "gcc", "-O2", "-pthread", "-Wall", "-Wextra", "-Werror", "-I../c/stub", "-o", bin,
		"../c/channel.c", "../c/stub/cuda.c", "../c/stub/stream.c").CombinedOutput()
	require.NoError(t, err, string(out))
	return bin
}

const ptx = "../c/check.ptx"

// Ours and C pass frames between processes, of which every word is checked; the report has all
// of it.
func TestCompare(t *testing.T) {
	c, dir := buildC(t), t.TempDir()
	var told, complaint strings.Builder
	code := run([]string{"-rival", "gpufd=" + ours + ",-as,writer,-driver,soft,-ptx," + ptx, "-rival", "c=" + c + ",-ptx," + ptx,
		"-frames", "none=/nonexistent", "-rounds", "1", "-quick", "-out", dir}, nil, &told, &complaint)
	require.Equal(t, cli.ExitOK, code, complaint.String())
	require.Equal(t, 1, strings.Count(complaint.String(), "left out"), complaint.String())
	require.Contains(t, complaint.String(), "none")
	csv, err := os.ReadFile(filepath.Join(dir, "channel.csv"))
	require.NoError(t, err)
	for _, name := range []string{"gpufd", "c"} {
		for what, n := range map[string]int{"frame": 8, "p50": 3, "p99": 3} {
			got := 0
			for line := range strings.Lines(string(csv)) {
				if f := strings.Split(line, ","); f[1] == name && f[3] == what {
					got++
				}
			}
			require.Equal(t, n, got, "%s of %s", what, name)
		}
	}
	require.Contains(t, told.String(), "kernels on both sides")
	require.Equal(t, 4, strings.Count(told.String(), "not measured"), "frames of none")
}

// Readers on another device get frames, too, and the report is one of its own.
func TestCompareOfTwo(t *testing.T) {
	c, dir := buildC(t), t.TempDir()
	var told, complaint strings.Builder
	code := run([]string{"-two", "-rival", "gpufd=" + ours + ",-as,writer,-driver,soft,-on,1,-ptx," + ptx, "-rival", "c=" + c + ",-on,1,-ptx," + ptx,
		"-rounds", "1", "-quick", "-out", dir}, nil, &told, &complaint)
	require.Equal(t, cli.ExitOK, code, complaint.String())
	require.Empty(t, complaint.String())
	require.NotContains(t, told.String(), "not measured")
	require.FileExists(t, filepath.Join(dir, "channel-two.csv"))
}

// The reader's device is the one that was said: there is none with that number.
func TestReadersDevice(t *testing.T) {
	r, err := rival.Start(t.Context(), "r", ours, "-as", "writer", "-driver", "soft", "-on", "99", "-ptx", ptx)
	require.NoError(t, err)
	_, err = r.Ask(t.Context(), "frames 4096 4 0 128")
	require.Error(t, err)
	_ = r.Close()
	r, err = rival.Start(t.Context(), "r", buildC(t), "-on", "99", "-ptx", ptx)
	require.NoError(t, err)
	_, err = r.Ask(t.Context(), "frames 4096 4 0 128")
	require.ErrorContains(t, err, "cuDevicePrimaryCtxRetain")
	_ = r.Close()
}

// A frame that is not what was written is found, whoever reads it, and what fails is said.
func TestRivalsFail(t *testing.T) {
	c := buildC(t)
	for fail, want := range map[string]string{
		"frame": "words were wrong", "cuMemHostRegister": "cuMemHostRegister", "cuLaunchKernel": "reader: cuLaunchKernel",
		"cuMemImportFromShareableHandle": "reader: cuMemImportFromShareableHandle",
	} {
		t.Setenv("STUB_FAIL", fail)
		r, err := rival.Start(t.Context(), "c", c, "-ptx", ptx)
		require.NoError(t, err)
		_, err = r.Ask(t.Context(), "frames 4096 4 0 128")
		require.ErrorContains(t, err, want)
		_, err = r.Ask(t.Context(), "frames 4096 4 0 128")
		require.ErrorContains(t, err, "it ended: exit status 1")
		require.NoError(t, r.Close())
	}
	t.Setenv("STUB_FAIL", "cuInit")
	_, err := rival.Start(t.Context(), "c", c)
	require.ErrorContains(t, err, "cuInit")
}

// Questions that nobody can answer are refused, by ours and by C, and both live on.
func TestBadQuestions(t *testing.T) {
	c := buildC(t)
	for _, argv := range [][]string{{ours, "-as", "writer", "-driver", "soft", "-ptx", ptx}, {c, "-ptx", ptx}} {
		r, err := rival.Start(t.Context(), "r", argv...)
		require.NoError(t, err)
		for _, q := range []string{"oneway 0 64", "oneway 65 64", "oneway 1 63", "hosts 0", "frames 3 4 0 128", "frames 4096 4 2 128", "frames 4096 4 0 16", "x"} {
			_, err := r.Ask(t.Context(), "%s", q)
			require.Error(t, err, q)
		}
		a, err := r.Ask(t.Context(), "hosts 10")
		require.NoError(t, err)
		require.Len(t, a.Each, 10)
		require.NoError(t, r.Close())
	}
}

// Our reader finds a frame whose words are others.
func TestWrongWordsAreFound(t *testing.T) {
	r, err := rival.Start(t.Context(), "r", ours, "-as", "writer", "-driver", "soft", "-ptx", brokenKernel(t))
	require.NoError(t, err)
	_, err = r.Ask(t.Context(), "frames 4096 4 0 128")
	require.ErrorContains(t, err, "words of frames were wrong")
	require.NoError(t, r.Close())
}

// brokenKernel is the kernel, but it looks for one more than the value.
func brokenKernel(t *testing.T) string {
	text, err := os.ReadFile(ptx)
	require.NoError(t, err)
	broken := strings.Replace(string(text), "\tcvta.to.global.u64 \t%rd4, %rd1;", "\tadd.s32 \t%r1, %r1, 1;\n\tcvta.to.global.u64 \t%rd4, %rd1;", 1)
	require.NotEqual(t, string(text), broken)
	path := filepath.Join(t.TempDir(), "broken.ptx")
	require.NoError(t, os.WriteFile(path, []byte(broken), 0o600))
	return path
}

// Ratios are those of rounds, or not numbers.
func TestRatios(t *testing.T) {
	f := &field{settings: settings{rivals: rival.Commands{{Name: "gpufd"}, {Name: "c"}}}}
	each := func(ns ...int64) rival.Answer { return rival.Answer{Each: ns} }
	got := answers{"gpufd": {each(5000, 6000, 7000), each(11000)}, "c": {each(6000), each(10000)}}
	require.InDelta(t, stats.Summarize([]float64{1, 1.1}).P50, f.ratio(got, "gpufd", half), 1e-9)
	require.Equal(t, "–", report.Times(f.ratio(answers{"gpufd": {{NS: 120}}}, "gpufd", perFrame)), "C did not answer")
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{}, {"-as", "x"}, {"-rival", "x"}, {"-rival", "a=b", "-rounds", "0"}} {
		var out, err strings.Builder
		require.Equal(t, cli.ExitUsage, run(args, nil, &out, &err), args)
	}
}
