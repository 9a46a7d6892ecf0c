package rival

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The rival of these tests is the test binary itself.
func TestMain(m *testing.M) {
	switch os.Getenv("RIVAL") {
	case "":
		os.Exit(m.Run())
	case "good":
		err := Serve(os.Stdin, os.Stdout, Answer{Name: "good", Info: "v1"}, map[string]Handler{
			"add":   func(args []uint64) (Answer, error) { return Answer{NS: int64(args[0] + args[1])}, nil },
			"fail":  func([]uint64) (Answer, error) { return Answer{}, errors.New("no luck") },
			"hang":  func([]uint64) (Answer, error) { return Answer{}, unix.Pause() },
			"leave": func([]uint64) (Answer, error) { os.Exit(3); return Answer{}, nil },
			"long":  func(args []uint64) (Answer, error) { return Answer{Each: make([]int64, args[0])}, nil },
			"leak":  leak,
			"await": await,
		})
		if err != nil {
			os.Exit(1)
		}
	case "garbage":
		fmt.Println("hello")
	case "mute":
		fmt.Println("{}")
	case "refusing":
		_ = Refuse(os.Stdout, errors.New("no\n\tdevice"))
		os.Exit(3)
	case "failing":
		os.Exit(3)
	}
}

// await answers when its input has ended, and leaves a file then.
func await([]uint64) (Answer, error) {
	_, err := io.ReadAll(os.Stdin)
	return Answer{}, errors.Join(err, os.WriteFile(os.Getenv("RIVAL_FILE"), nil, 0o600))
}

// leak leaves a process behind that holds the rival's output, and hangs.
func leak([]uint64) (Answer, error) {
	cmd := exec.Command("sleep", "1000")
	cmd.Stdout = os.Stdout
	if err := cmd.Start(); err != nil {
		return Answer{}, err
	}
	return Answer{}, unix.Pause()
}

func started(t *testing.T, kind string) (*Rival, error) {
	t.Setenv("RIVAL", kind)
	return Start(t.Context(), kind, os.Args[0])
}

func TestAsk(t *testing.T) {
	r, err := started(t, "good")
	require.NoError(t, err)
	require.Equal(t, "v1", r.Info)
	for i := range 3 {
		a, err := r.Ask(t.Context(), "add %d %d", i, 2)
		require.NoError(t, err)
		require.EqualValues(t, i+2, a.NS)
	}
	_, err = r.Ask(t.Context(), "fail")
	require.ErrorContains(t, err, "no luck")
	_, err = r.Ask(t.Context(), "nonsense")
	require.ErrorContains(t, err, "no such request")
	_, err = r.Ask(t.Context(), "add x 1")
	require.ErrorContains(t, err, "invalid syntax")
	a, err := r.Ask(t.Context(), "long 5000")
	require.NoError(t, err, "a line longer than a scanner takes")
	require.Len(t, a.Each, 5000)
	_, err = r.Ask(t.Context(), "add 1 1")
	require.NoError(t, err, "it lives on")
	require.NoError(t, r.Close())
}

func TestRivalsThatCannotBeUsed(t *testing.T) {
	for kind, why := range map[string]string{
		"garbage": "not an answer", "mute": "does not say that it is ready", "silent": "it ended: exit status 0",
		"refusing": "no device", "failing": "it ended: exit status 3",
	} {
		_, err := started(t, kind)
		require.ErrorContains(t, err, "rival "+kind+": ")
		require.ErrorContains(t, err, why)
		require.NotContains(t, err.Error(), "\n")
	}
	_, err := Start(t.Context(), "nothing", "/nonexistent")
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestRivalsThatStop(t *testing.T) {
	for _, c := range []struct{ request, want string }{{"leave", "it ended"}, {"hang", "no answer"}, {"leak", "no answer"}} {
		r, err := started(t, "good")
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err = r.Ask(ctx, c.request)
		cancel()
		require.ErrorContains(t, err, c.want)
		_, again := r.Ask(t.Context(), "add 1 1")
		require.Equal(t, err, again, "what it died of")
		require.NoError(t, r.Close())
	}
}

// Giving up a wait leaves the rival time to tidy up.
func TestCancelledRivalsEndByThemselves(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	t.Setenv("RIVAL_FILE", file)
	r, err := started(t, "good")
	require.NoError(t, err)
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	cancel(enough)
	_, err = r.Ask(ctx, "await")
	require.ErrorIs(t, err, enough)
	require.NoError(t, r.Close())
	require.FileExists(t, file)
}

func TestServeEndsWithItsInput(t *testing.T) {
	var out strings.Builder
	require.NoError(t, Serve(strings.NewReader("\n"), &out, Answer{Name: "x"}, nil))
	require.Equal(t, 2, strings.Count(out.String(), "\n"))
	require.Contains(t, out.String(), `"ready":true`)
}

func TestCommands(t *testing.T) {
	var c Commands
	require.NoError(t, c.Set("a=/bin/x,-y,z"))
	require.Equal(t, Commands{{"a", []string{"/bin/x", "-y", "z"}}}, c)
	for _, bad := range []string{"", "b", "b=", "=x", "a=/bin/y"} {
		require.Error(t, c.Set(bad), bad)
	}
}
