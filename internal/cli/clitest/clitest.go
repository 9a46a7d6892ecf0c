// Package clitest has what the tests of several commands need.
package clitest

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/gpufd/gpufd/internal/cli"
)

// FuzzArguments parses arguments, with NUL between them, as the command does that
// open makes. Whatever they are, parsing ends without a panic and without a
// driver: what is refused is usage, exit code 2, in one line; what is accepted
// means the same when it is written out. seeds are joined by blanks.
func FuzzArguments(f *testing.F, open func(stdout io.Writer) *cli.App, seeds ...string) {
	for _, s := range append(seeds, "", "-h", "-version", "-json", "-driver soft -timeout 1m", "extra", "-", "--", "-- -h", "-nope", "-=", "-json=maybe", "-timeout") {
		f.Add(strings.ReplaceAll(s, " ", "\x00"))
	}
	f.Fuzz(func(t *testing.T, joined string) {
		args := strings.Split(joined, "\x00")
		app := open(io.Discard)
		switch err := app.Parse(args); {
		case errors.Is(err, flag.ErrHelp):
			ends(t, open, args, cli.ExitOK)
		case err != nil:
			if code := cli.ExitCode(err); code != cli.ExitUsage {
				t.Fatalf("%q: exit code %d: %v", args, code, err)
			}
			ends(t, open, args, cli.ExitUsage)
		case isSet(app, "version"):
			ends(t, open, args, cli.ExitOK)
		default:
			again := open(io.Discard)
			if err := again.Parse(written(app)); err != nil {
				t.Fatalf("%q is accepted, and %q is not: %v", args, written(app), err)
			}
			if !slices.Equal(written(app), written(again)) {
				t.Fatalf("%q\nbecomes %q\nand then %q", args, written(app), written(again))
			}
		}
	})
}

// ends runs a command that has to end with that code before it opens a driver.
func ends(t *testing.T, open func(io.Writer) *cli.App, args []string, want int) {
	var stdout, stderr bytes.Buffer
	app := open(&stdout)
	code := app.Run(args, &stderr, func(context.Context) error { return nil })
	text := stderr.String()
	switch {
	case code != want, app.Driver != nil:
		t.Fatalf("%q: exit code %d, driver %v", args, code, app.Driver)
	case want == cli.ExitOK && text != "":
		t.Fatalf("%q: %q", args, text)
	case want != cli.ExitOK && (strings.Count(text, "\n") != 1 || !strings.HasSuffix(text, "\n")):
		t.Fatalf("%q: not one line: %q", args, text)
	}
}

func isSet(app *cli.App, name string) bool { return app.Flags.Lookup(name).Value.String() == "true" }

// written are the arguments that set every flag to what it is, with what follows
// them.
func written(app *cli.App) (args []string) {
	app.Flags.VisitAll(func(f *flag.Flag) {
		if s := f.Value.String(); s != f.DefValue {
			args = append(args, "-"+f.Name+"="+s)
		}
	})
	if app.Flags.NArg() > 0 {
		args = append(append(args, "--"), app.Flags.Args()...)
	}
	return args
}
