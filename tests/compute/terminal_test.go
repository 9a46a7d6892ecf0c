package compute

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/share"
)

// A terminal is what a program has for its standard output: a pseudo terminal, and what
// came out of it.
type terminal struct {
	t    testing.TB
	tty  *os.File
	said chan string
}

// newTerminal makes one of so many columns.
func newTerminal(t testing.TB, columns uint16) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("there are no pseudo terminals here: %v", err)
	}
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 25, Col: columns}))
	term := &terminal{t, tty, make(chan string, 1)}
	go func() {
		defer master.Close()
		said, _ := io.ReadAll(master) // EIO once nobody has the other end
		term.said <- string(said)
	}()
	return term
}

// start starts a program there.
func (term *terminal) start(program string, args ...string) *programs.Process {
	term.t.Helper()
	cmd := exec.Command(programs.ProgramPath(term.t, program), args...)
	cmd.Stdout = term.tty
	return programs.StartCommand(term.t, program, cmd, []string{"GPUFD_DRIVER=" + programs.KindName(), "TERM=xterm"})
}

// end says what came out, when the program has ended.
func (term *terminal) end() string {
	term.t.Helper()
	require.NoError(term.t, term.tty.Close())
	return <-term.said
}

// TestTerminalShowsLongWork: on a terminal, who waits says for what, on one line that is
// rewritten, fits, and goes in the end.
func TestTerminalShowsLongWork(t *testing.T) {
	programs.Parallel(t)
	cutest.ProvenOnSoft(t)
	spin := args("-ptx", file(t, []byte(probes)), "-kernel", "spin", "zero:4")
	s := programs.NewScene(t)
	silent := s.Serving("-consumers", "0")
	silent.Stop()
	for name, c := range map[string]struct {
		program string
		args    []string
		code    int
		line    string
	}{
		"consumer without a producer": {"consumer", args("-timeout", "3s", "-socket", programs.NewScene(t).Socket), 1, "waiting for a producer (1s)"},
		"producer says nothing":       {"consumer", args("-timeout", "3s", "-socket", s.Socket), 4, "waiting for the producer, which may still be filling its memory (1s)"},
		"kernel runs":                 {"launch", append(args("-timeout", "3s"), spin...), 4, "kernel spin is running, for 3s at most (1s)"},
		"step of a ring":              {"ring", args("-timeout", "3s", "-procs", "2", "-size", "1", "-module", endless(t)), 4, "0 of 2 steps done; the next: 0 of 2 processes done (1s)"},
	} {
		t.Run(name, func(t *testing.T) {
			programs.Parallel(t)
			term := newTerminal(t, 40)
			p := term.start(c.program, c.args...)
			require.Equal(t, c.code, p.Wait(), p.Dump())
			said := term.end()
			require.Contains(t, said, "\r\x1b[K"+c.line[:min(39, len(c.line))]+"\r\x1b[K", "rewritten, and not wrapped")
			for _, line := range regexp.MustCompile(`\r\x1b\[K[^\r\n]*\n`).FindAllString(said, -1) {
				require.NotContains(t, line, c.line[:10], "the line stays")
			}
			require.True(t, strings.HasSuffix(said, "\n") || strings.HasSuffix(said, "\x1b[K"), "%q", said)
		})
	}
	t.Cleanup(func() {
		require.NoError(t, programs.Resume(silent))
		silent.Signal(unix.SIGTERM)
		silent.Wait()
	})
}

// TestTerminalShowsHowMuchIsFilled: who waits for a producer that fills its memory shows how
// far that is, as the producer says.
func TestTerminalShowsHowMuchIsFilled(t *testing.T) {
	programs.Parallel(t)
	cutest.ProvenOnSoft(t)
	socket := programs.NewScene(t).Socket
	srv, err := share.Listen(socket, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, srv.Close()) }()
	offer, err := srv.Offer(cli.OfferName, nil, &share.OfferOptions{Pending: true})
	require.NoError(t, err)
	offer.ReportProgress(1<<20, 4<<20)
	term := newTerminal(t, 100)
	p := term.start("consumer", args("-timeout", "3s", "-socket", socket)...)
	require.Equal(t, 4, p.Wait(), p.Dump())
	require.Contains(t, term.end(), "\r\x1b[Kwaiting for the producer, which has filled 1 MiB of 4 MiB (25 %) (1s)")
}
