package program

import (
	"errors"
	"flag"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/internal/cli"
)

func TestRun(t *testing.T) {
	for name, tt := range map[string]struct {
		args           []string
		body           error
		code           int
		stdout, stderr string
	}{
		"good":     {[]string{"-n", "2"}, nil, cli.ExitOK, "", ""},
		"help":     {[]string{"-h"}, errors.New("not run"), cli.ExitOK, "how `often`", ""},
		"unknown":  {[]string{"-fast"}, nil, cli.ExitUsage, "", "prog: flag provided but not defined: -fast; -h explains\n"},
		"no n":     {[]string{"-n", "x"}, nil, cli.ExitUsage, "", "prog: invalid value \"x\" for flag -n: parse error; -h explains\n"},
		"argument": {[]string{"now"}, nil, cli.ExitUsage, "", "prog: unexpected argument \"now\"; -h explains\n"},
		"failure":  {nil, errors.New("one:\n\ttwo"), cli.ExitFailed, "", "prog: one: two\n"},
		"usage":    {nil, cli.Usagef("-n 0"), cli.ExitUsage, "", "prog: -n 0\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr strings.Builder
			flags := flag.NewFlagSet("prog", flag.ContinueOnError)
			flags.Int("n", 1, "how often")
			require.Equal(t, tt.code, Run(flags, tt.args, &stdout, &stderr, func() error { return tt.body }))
			require.Equal(t, tt.stderr, stderr.String())
			require.Contains(t, stdout.String(), strings.ReplaceAll(tt.stdout, "`", ""))
		})
	}
}
