package app

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
)

// run runs a command whose body is body, on the software driver.
func run(t *testing.T, body func(context.Context, *App) error, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	t.Setenv("GPUFD_DRIVER", "soft")
	var out, errs bytes.Buffer
	a := New("prog", "does something.", &out)
	code = a.run(args, &errs, func(ctx context.Context) error { return body(ctx, a) })
	return code, out.String(), errs.String()
}

// run runs a with that body.
func (a *App) run(args []string, stderr io.Writer, body func(context.Context) error) int {
	a.Body = body
	return a.Run(args, stderr)
}

func TestRunOpensTheDriverAndSaysWhich(t *testing.T) {
	code, out, errs := run(t, func(ctx context.Context, a *App) error {
		require.Equal(t, cu.Soft, a.Driver.Kind())
		dev, err := a.Device("0")
		require.NoError(t, err)
		a.Result["count"] = 7
		return cli.NeedVMM(dev)
	}, "-json")
	require.Equal(t, cli.ExitOK, code)
	require.Empty(t, errs)
	all := objects(t, out)
	require.Equal(t, "driver", all[0]["event"])
	require.Equal(t, "soft", all[0]["driver"])
	require.Equal(t, "device", all[1]["event"])
	last := all[len(all)-1]
	require.Equal(t, "result", last["event"])
	require.EqualValues(t, 7, last["count"])
	require.Equal(t, "soft", last["driver"])
	require.Contains(t, last["steps_us"], "driver")

	_, out, _ = run(t, func(context.Context, *App) error { return nil })
	require.Contains(t, out, "Driver: software driver (CUDA ")
	require.Contains(t, out, "as asked")
}

// Usage errors are one line each, exit 2, and the body never runs.
func TestUsageErrors(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"-nope", "unknown flag: --nope"}, {"-timeout 5", "want a duration"}, {"-timeout 0s", "want more than 0"},
		{"-timeout -1s", "want more than 0"}, {"-driver gpu", "want auto, cuda or soft"}, {"extra", `unexpected argument "extra"`},
		{"-json=maybe", "want true or false"},
	} {
		code, out, errs := run(t, func(context.Context, *App) error { t.Error("the body ran"); return nil }, strings.Fields(c.args)...)
		require.Equal(t, cli.ExitUsage, code, c.args)
		require.Empty(t, out)
		require.Contains(t, errs, c.want)
		require.Regexp(t, `^prog: [^\n]+\n$`, errs)
	}
}

func TestFailureIsOneLineWithAdvice(t *testing.T) {
	code, out, errs := run(t, func(context.Context, *App) error {
		return errors.Join(errors.New("first"), errors.New("second"))
	}, "-json")
	require.Equal(t, cli.ExitFailed, code)
	require.Equal(t, "prog: first; second\n", errs)
	all := objects(t, out)
	require.Equal(t, false, all[len(all)-1]["ok"])
	require.Equal(t, "first; second", all[len(all)-1]["error"])
}

func TestSignalEndsTheContext(t *testing.T) {
	hangups := make(chan os.Signal, 1) // taken, so that they are not ignored, as nohup(1) has them
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		code, _, _ := run(t, func(ctx context.Context, a *App) error {
			require.NoError(t, syscall.Kill(os.Getpid(), s))
			select {
			case <-ctx.Done():
				require.ErrorIs(t, context.Cause(ctx), ErrInterrupted)
			case <-time.After(30 * time.Second):
				t.Error("the signal did nothing")
			}
			return nil
		})
		require.Equal(t, cli.ExitOK, code)
	}
}

func TestUnknownDeviceIsAFailureThatListsThem(t *testing.T) {
	code, _, errs := run(t, func(_ context.Context, a *App) error {
		_, err := a.Device("GPU-ffffffff")
		return err
	})
	require.Equal(t, cli.ExitFailed, code)
	require.Regexp(t, `^prog: cu: no device GPU-ffffffff here; visible devices: 0: [^\n]+\n$`, errs)
}

// --help and --version fail if their output cannot be written.
func TestHelpThatCannotBeWritten(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	defer full.Close()
	for _, arg := range []string{"--help", "--version", "--completion=bash"} {
		var errs bytes.Buffer
		require.Equal(t, cli.ExitFailed, New("prog", "talks.", full).run([]string{arg}, &errs, nil))
		require.Equal(t, "prog: writing the output: write /dev/full: no space left on device\n", errs.String())
	}
}

// A value that cannot be read is told what is wanted.
func TestWantedValues(t *testing.T) {
	for args, want := range map[string]string{
		"-timeout 30":                 `--timeout "30": want a duration such as 500ms, 30s or 2m; see test --help`,
		"-json=perhaps":               `--json "perhaps": want true or false; see test --help`,
		"-count 1.5":                  `--count "1.5": want a whole number of 64 bits; see test --help`,
		"--count=0x":                  `--count "0x": want a whole number of 64 bits; see test --help`,
		"-large -1":                   `--large "-1": want a whole number, 0 or more; see test --help`,
		"-count 99999999999999999999": `--count "99999999999999999999": want a whole number of 64 bits; see test --help`,
		"-access wo":                  `--access "wo": want ro or rw; see test --help`,
		"-other":                      `unknown flag: --other; see test --help`,
		"-count":                      `flag needs an argument: --count; see test --help`,
		"-=":                          `bad flag syntax: --=; see test --help`,
	} {
		a := New("test", "tests.", io.Discard)
		a.Flags.Int("count", 0, "")
		a.Flags.Uint64("large", 0, "")
		Choice(a.Flags, new(string), "access", "ro", "", "ro", "rw")
		_, err := a.Parse(strings.Fields(args))
		require.EqualError(t, err, want)
		require.Equal(t, cli.ExitUsage, cli.ExitCode(err))
	}
}

// The result of --json comes whatever is wrong with the arguments, and wherever it stands
// among them.
func TestUsageErrorsHaveAResult(t *testing.T) {
	for args, want := range map[string]bool{
		"-json -nope": true, "-nope -json": true, "-nope --json=true": true, "-timeout 5 -json": true, "extra -json": true, "-driver gpu -json": true,
		"-nope": false, "-nope -json=false": false, "-json -nope -json=0": false, "-nope -json=maybe": false, "-nope json": false,
	} {
		code, out, errs := run(t, func(context.Context, *App) error { t.Error("the body ran"); return nil }, strings.Fields(args)...)
		require.Equal(t, cli.ExitUsage, code, args)
		require.Regexp(t, `^prog: [^\n]+\n$`, errs)
		if !want {
			require.Empty(t, out, args)
			continue
		}
		all := objects(t, out)
		require.Len(t, all, 1, args)
		require.Equal(t, "result", all[0]["event"])
		require.EqualValues(t, cli.ExitUsage, all[0]["exit"])
		require.Contains(t, errs, all[0]["error"])
	}
}

// One dash is as good as two, up to the first argument that is no flag.
func TestOneDash(t *testing.T) {
	a := New("test", "tests.", io.Discard)
	a.Command.Args = nil
	count, text := a.Flags.Int("count", 0, ""), a.Flags.String("text", "", "")
	_, err := a.Parse(strings.Fields("-count -3 -json -text=-x -- -count"))
	require.NoError(t, err)
	require.Equal(t, []any{-3, true, "-x", []string{"-count"}}, []any{*count, a.json, *text, a.Flags.Args()})
	_, err = a.Parse(strings.Fields("-text -json extra -count"))
	require.NoError(t, err)
	require.Equal(t, []any{"-json", []string{"extra", "-count"}}, []any{*text, a.Flags.Args()})
}

// Shells are told the flags' words and nothing where there are none; a flag with one dash counts, too.
func TestCompletion(t *testing.T) {
	for line, want := range map[string]string{
		"-access r": "ro\nrw\n:4\n", "-driver ": "auto\ncuda\nsoft\n:4\n", "-count ": ":4\n", "--module ": ":0\n", "": ":4\n", "--acc": "--access\n:4\n",
	} {
		var out, errs bytes.Buffer
		a := New("test", "tests.", &out)
		a.Flags.Int("count", 0, "")
		a.Flags.String("module", "", "")
		Choice(a.Flags, new(string), "access", "ro", "", "ro", "rw")
		require.Equal(t, cli.ExitOK, a.run(append([]string{"__completeNoDesc"}, strings.Split(line, " ")...), &errs, nil), line)
		require.Equal(t, want, out.String(), line)
		require.Empty(t, errs.String())
	}
	code, out, errs := run(t, nil, "-timeout", "0s", "-completion=bash")
	require.Equal(t, cli.ExitOK, code, errs)
	require.Contains(t, out, "__start_prog")
	code, _, errs = run(t, nil, "-completion", "csh")
	require.Equal(t, cli.ExitUsage, code)
	require.Contains(t, errs, "want bash, zsh or fish")
}

// Early fails before a driver is opened.
func TestEarlyFailure(t *testing.T) {
	t.Setenv("GPUFD_DRIVER", "soft")
	var out, errs bytes.Buffer
	a := New("prog", "does something.", &out)
	a.Early = func() error { return errors.New("there is none") }
	code := a.run(nil, &errs, func(context.Context) error { t.Error("the body ran"); return nil })
	require.Equal(t, cli.ExitFailed, code)
	require.Empty(t, out.String())
	require.Nil(t, a.Driver)
	require.Equal(t, "prog: there is none\n", errs.String())
}

// An error is told once, before what is tidied up, and again with what that fails with.
func TestErrorsComeBeforeCleanup(t *testing.T) {
	broken := errors.New("the work failed")
	for name, c := range map[string]struct {
		closing error
		want    string
	}{
		"cleaned up":     {nil, "Driver: D|prog: the work failed|tidying|  durations: D|Cleanup complete|"},
		"cleanup failed": {errors.New("closing failed"), "Driver: D|prog: the work failed|tidying|  durations: D|prog: the work failed; closing failed|"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("GPUFD_DRIVER", "soft")
			var both lockedBuffer
			a := New("prog", "does something.", &both)
			code := a.run(nil, &both, func(context.Context) error {
				return a.Cleanup(broken, func() error { a.Say("x", nil, "tidying"); return c.closing })
			})
			require.Equal(t, cli.ExitFailed, code)
			said := regexp.MustCompile(`(Driver|durations): .*`).ReplaceAllString(both.String(), "$1: D")
			require.Equal(t, c.want, strings.ReplaceAll(said, "\n", "|"))
		})
	}
	code, out, errs := run(t, func(_ context.Context, a *App) error { return a.Cleanup(broken) }, "-json")
	require.Equal(t, cli.ExitFailed, code)
	require.Equal(t, "prog: the work failed\n", errs)
	all := objects(t, out)
	require.Equal(t, "the work failed", all[len(all)-1]["error"])
	require.Equal(t, "cleanup", all[len(all)-2]["event"])
}

// A lockedBuffer takes what several goroutines write.
type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

// -driver is what the driver is chosen by, also where GPUFD_DRIVER says something else.
func TestFlagOverridesTheEnvironment(t *testing.T) {
	t.Setenv("GPUFD_DRIVER", "cuda")
	var out, errs bytes.Buffer
	a := New("prog", "opens a driver.", &out)
	code := a.run([]string{"-driver", "soft"}, &errs, func(context.Context) error { return nil })
	require.Equal(t, cli.ExitOK, code, &errs)
	require.Equal(t, cu.Soft, a.Driver.Kind())
	require.Equal(t, "soft", os.Getenv("GPUFD_DRIVER"), "for cu.Open, and the processes that this one starts")
}
