package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// completed is a command with flags of all kinds.
func completed() *App {
	a := New("prog", "does something.", io.Discard)
	a.Args, a.ArgValues = "ARG…", []string{"u8:", "u16:", "in:"}
	a.Values = map[string][]string{"kernel": {"saxpy", "fill"}}
	a.Flags.String("access", "ro", "map it `ro|rw`; it's 'quoted', $(false) and `not that`")
	a.Flags.String("kernel", "", "`name` of [the] kernel: any")
	a.Flags.String("module", "", "take this `file`")
	a.Flags.Int("count", 0, "how `N`")
	a.Flags.Bool("v", false, "say more")
	return a
}

// script is what the command prints for a shell.
func script(t *testing.T, a *App, shell string) string {
	t.Helper()
	require.NoError(t, a.Parse([]string{"--completion", shell}))
	return a.completionScript()
}

// complete has bash complete the last of words, as it does behind a command.
func complete(t *testing.T, script, dir string, words ...string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "--norc", "-c", script+`
		function=$(complete -p prog | sed 's/.* -F \([^ ]*\) .*/\1/')
		COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
		$function prog
		printf '%s\n' "${COMPREPLY[@]}"`, "bash")
	cmd.Args, cmd.Dir = append(cmd.Args, words...), dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return strings.Fields(string(out))
}

// TestBashCompletes: bash completes flags with one dash and two, their values, files, and
// arguments. It takes = and : for words of their own.
func TestBashCompletes(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("there is no bash here")
	}
	text, dir := script(t, completed(), "bash"), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file.ptx"), nil, 0o600))
	for line, want := range map[string]string{
		"prog --acc":                  "--access",
		"prog -acc":                   "-access",
		"prog --c":                    "--completion --count",
		"prog --access|":              "ro rw",
		"prog -access|r":              "ro rw",
		"prog --access|=":             "ro rw",
		"prog --access|=|rw":          "rw",
		"prog --driver|":              "auto cuda soft",
		"prog --completion|":          "bash zsh fish",
		"prog --kernel|s":             "saxpy",
		"prog --module|f":             "file.ptx",
		"prog --module|=|f":           "file.ptx",
		"prog --count|":               "",
		"prog --v":                    "--version",
		"prog -v|":                    "u8: u16: in:",
		"prog -v|u":                   "u8: u16:",
		"prog -v|in|:":                "file.ptx",
		"prog -v|in|:|fi":             "file.ptx",
		"prog --json|--access|rw|--m": "--module",
	} {
		line, want := strings.Replace(line, "prog ", "prog|", 1), want
		require.ElementsMatch(t, strings.Fields(want), complete(t, text, dir, strings.Split(line, "|")...), line)
	}
	all := complete(t, text, dir, "prog", "-")
	for _, f := range strings.Fields("--access --help --json --timeout -v -json") {
		require.Contains(t, all, f)
	}
	plain := completed()
	plain.Args, plain.ArgValues = "", nil
	require.Empty(t, complete(t, script(t, plain, "bash"), dir, "prog", ""), "it takes no arguments")
}

// TestCompletionOfOtherShells: what zsh and fish are told of the flags. Where one of them
// is, it reads that.
func TestCompletionOfOtherShells(t *testing.T) {
	for shell, want := range map[string][]string{
		"zsh": {
			"#compdef prog\n", `'--access=[map it ro|rw]:ro|rw:(ro rw)'`, `'--kernel=[name of \[the\] kernel\: any]:name:(saxpy fill)'`,
			`'--module=[take this file]:file:_files'`, `'-v[say more]'`, `'--count=[how N]:N: '`, `'*:argument:(u8\: u16\: in\:)'`, "compdef _gpufd_prog prog\n",
		},
		"fish": {
			"complete -c prog -l access -x -a 'ro rw' -d 'map it ro|rw'\n", "complete -c prog -l kernel -x -a 'saxpy fill' -d 'name of [the] kernel: any'\n",
			"complete -c prog -l module -r -F -d 'take this file'\n", "complete -c prog -s v -d 'say more'\n", "complete -c prog -l count -x -a '' -d 'how N'\n",
			"complete -c prog -a 'u8: u16: in:'\n",
		},
	} {
		text := script(t, completed(), shell)
		for _, w := range want {
			require.Contains(t, text, w)
		}
		if path, err := exec.LookPath(shell); err == nil {
			out, err := exec.CommandContext(t.Context(), path, "-n", "-c", text).CombinedOutput()
			require.NoError(t, err, "%s", out)
		}
	}
}

// A completion ends the program before anything else does, and a shell that is not known
// is named.
func TestCompletionFlag(t *testing.T) {
	never := func(context.Context, *App) error { t.Error("the body ran"); return nil }
	code, out, errs := run(t, never, "-timeout", "0s", "-completion=bash")
	require.Equal(t, ExitOK, code, errs)
	require.Contains(t, out, "complete -F _gpufd_prog prog\n")
	code, out, errs = run(t, never, "-completion", "csh")
	require.Equal(t, ExitUsage, code)
	require.Empty(t, out)
	require.Equal(t, fmt.Sprintln(`prog: invalid value "csh" for flag --completion: want bash, zsh or fish; see prog -h`), errs)
}
