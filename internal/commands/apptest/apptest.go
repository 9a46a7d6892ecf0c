// Package apptest has what the tests of several commands need.
package apptest

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/commands/app"
)

// FuzzArguments parses arguments, with NUL between them, as the command does that open makes.
// Parsing ends without a panic and without a driver, whatever they are. Refused arguments are wrong
// usage, exit code 2, in one line. seeds are joined by blanks.
func FuzzArguments(f *testing.F, open func(stdout io.Writer) *app.App, seeds ...string) {
	for _, s := range append(seeds, "", "-h", "-version", "-json", "-driver soft -timeout 1m", "extra", "-", "--", "-- -h", "-nope", "-=", "-json=maybe", "-timeout") {
		f.Add(strings.ReplaceAll(s, " ", "\x00"))
	}
	f.Fuzz(func(t *testing.T, joined string) {
		args := strings.Split(joined, "\x00")
		print, err := open(io.Discard).Parse(args)
		if print == nil && err == nil {
			return
		}
		want, lines := cli.ExitOK, 0
		if err != nil {
			want, lines = cli.ExitUsage, 1
		}
		var stdout, stderr bytes.Buffer
		app := open(&stdout)
		code := app.Run(args, &stderr)
		if code != want || app.Driver != nil || strings.Count(stderr.String(), "\n") != lines {
			t.Fatalf("%q: exit code %d, driver %v, %q", args, code, app.Driver, &stderr)
		}
	})
}
