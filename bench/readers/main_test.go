package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/internal/cli"
)

// script is a rival whose time grows with the square of its readers, up to 16 of them.
func script(t *testing.T, name string) string {
	const text = `#!/bin/sh
echo '{"ready":true}'
while read what n rounds; do
	if [ $n -gt 16 ]; then
		echo '{"error":"no room"}'
	else
		echo '{"each":['$((n*n))'],"steps":[{"name":"queue","ns":'$((10*n))'}]}'
	fi
done
`
	path := filepath.Join(t.TempDir(), "rival")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o700))
	return name + "=" + path
}

func measured(t *testing.T, args ...string) (text, told string) {
	dir := t.TempDir()
	var out, complaint strings.Builder
	require.Equal(t, cli.ExitOK, run(append(args, "-out", dir), &out, &complaint), complaint.String())
	md, err := os.ReadFile(filepath.Join(dir, "channel-readers.md"))
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(dir, "channel-readers.csv"))
	return string(md), out.String()
}

// What grows faster than linear fails, and is held against a rival that does so, too.
func TestExponents(t *testing.T) {
	text, told := measured(t, "-rival", script(t, "gpufd"))
	require.Contains(t, told, "exponent of one way over readers, against that of a rival if it is above 1: 2.00, bar 1.10, met: false")
	require.Contains(t, told, "exponent of queueing over readers, against that of a rival if it is above 1: 1.00, bar 1.10, met: true")
	require.Contains(t, text, "- Not measured, or not further: 64 readers and more: rival gpufd: no room.")
	_, told = measured(t, "-rival", script(t, "gpufd"), "-rival", script(t, "c"))
	require.Contains(t, told, "against that of c if it is above 1: 2.00, bar 2.10, met: true")
	text, told = measured(t, "-rival", script(t, "gpufd"), "-rival", "c=/bin/false", "-budget", "1ns")
	require.Contains(t, text, "4 readers and more: the time for all of it was over")
	require.Contains(t, text, "rival c: it ended: exit status 1")
	require.Contains(t, told, "1: –, bar 1.10, met: false")
}

// Ours answers, on the software driver.
func TestOurs(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "channel")
	out, err := exec.Command("go", "build", "-o", bin, "../channel").CombinedOutput()
	require.NoError(t, err, string(out))
	text, _ := measured(t, "-rival", "gpufd="+bin+",-as,writer,-driver,soft,-ptx,../c/check.ptx", "-most", "3", "-rounds", "16")
	require.NotContains(t, text, "not further")
	require.Regexp(t, `\| gpufd +\| 3 +\| +[0-9.]+ .s`, text)
}

func TestWrongFlags(t *testing.T) {
	for _, args := range [][]string{{}, {"-rival", "x"}, {"-rival", "a=b", "-most", "0"}, {"-rival", "a=b", "-rounds", "8"}, {"-rival", "a=b", "-budget", "-1s"}} {
		var out, complaint strings.Builder
		require.Equal(t, cli.ExitUsage, run(args, &out, &complaint), args)
		require.Equal(t, 1, strings.Count(complaint.String(), "\n"), complaint.String())
	}
	var out, complaint strings.Builder
	require.Equal(t, cli.ExitFailed, run([]string{"-rival", "gpufd=/bin/false"}, &out, &complaint))
	require.Contains(t, complaint.String(), "nothing to report")
}
