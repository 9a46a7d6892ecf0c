package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/cli"
)

// ErrInterrupted is the cause with which a context ends on SIGINT, SIGTERM or SIGHUP,
// or when nobody reads the output any more.
var ErrInterrupted = errors.New("interrupted")

// errNoReader ends a program whose output is a closed pipe, as in "| head -1".
var errNoReader = fmt.Errorf("%w: nobody reads the output any more", ErrInterrupted)

// errUnread is the error of a program whose last lines nobody read.
var errUnread = errors.New("nobody reads the last lines")

// How long the last steps may take. A forced end does them all within a second.
const (
	drainLimit  = time.Second
	removeLimit = 400 * time.Millisecond
	forcedLimit = 300 * time.Millisecond
	stderrLimit = 200 * time.Millisecond
)

// An ending is the end of a program: orderly or forced, whichever comes first.
type ending struct {
	guard
	once   sync.Once
	exit   func(code int) // os.Exit
	forced chan struct{}  // closed when a forced end is over; tests survive one
	code   int            // the exit code of the forced end
	again  chan struct{}  // closed by a second signal: it ends the wait for the last lines
	drain  time.Duration  // how long that wait may take; drainLimit

	remove atomic.Pointer[func()] // of OnAbort
}

func newEnding() *ending {
	return &ending{exit: os.Exit, forced: make(chan struct{}), again: make(chan struct{}), drain: drainLimit}
}

// OnAbort calls f when the program is ended by force, because it does not end in order.
// f removes what would be left behind; there is one f at a time. A forced end waits for f less than half a second.
// forget undoes OnAbort, when there is nothing to remove any more.
func (a *App) OnAbort(f func()) (forget func()) {
	a.ending.remove.Store(&f)
	return func() { a.ending.remove.Store(nil) }
}

// Waiting says that the program waits for others, with its own bounds, until over is
// called. At any other time, --timeout without a sign of life counts as a call that hangs,
// and ends the program.
func (a *App) Waiting() (over func()) { return a.ending.wait() }

// watch ends the program in order when a signal comes, and by force when another one
// comes or the program does not end. It returns when over is closed.
func (a *App) watch(signals <-chan os.Signal, over <-chan struct{}, cancel context.CancelCauseFunc, stderr io.Writer) {
	limit, again := allowance(a.Timeout), sync.OnceFunc(func() { close(a.ending.again) })
	tick := time.NewTicker(limit / guardTicks)
	defer tick.Stop()
	var came Signals
	for {
		select {
		case s := <-signals:
			a.ending.end()
			if came.Again(s, time.Now()) {
				again()
				a.abort(stderr, cli.Codef(cli.ExitFailed, "%s came a second time: ended at once, without giving back device memory in order", s))
			}
			cancel(ErrInterrupted)
		case <-tick.C:
			if late, ending := a.ending.tick(); late {
				a.abort(stderr, a.hangs(limit, ending))
			}
		case <-over:
			return
		}
	}
}

// hangs returns the error of a program that gave no sign of life for limit.
func (a *App) hangs(limit time.Duration, ending bool) error {
	if ending {
		return cli.Codef(cli.ExitPeer, "did not end in order within %s: a call of the driver or the kernel hangs%s; ended by force", limit, a.lastStep())
	}
	return cli.Codef(cli.ExitPeer, "nothing happened for %s: a call of the driver or the kernel hangs%s; ended by force; wait longer with --timeout", limit, a.lastStep())
}

// abort ends the program by force, within a second.
func (a *App) abort(stderr io.Writer, err error) {
	a.ending.once.Do(func() {
		if f := a.ending.remove.Load(); f != nil {
			within(removeLimit, *f)
		}
		a.ending.code = a.conclude(stderr, nil, err, forcedLimit, nil) // Result is not safe to read now
		close(a.ending.forced)
		a.ending.exit(a.ending.code)
	})
}

// finish ends the program in order, unless it is being ended by force. A second signal ends
// the wait for its last lines.
func (a *App) finish(stderr io.Writer, err error) (code int) {
	orderly := false
	a.ending.once.Do(func() {
		orderly, code = true, a.conclude(stderr, a.Result, err, a.ending.drain, a.ending.again)
	})
	if !orderly {
		<-a.ending.forced
		return a.ending.code
	}
	return code
}

// conclude prints the result and the error, and returns the exit code. It waits until the
// output is written, but no longer than limit or once hurry is closed.
func (a *App) conclude(stderr io.Writer, result Fields, err error, limit time.Duration, hurry <-chan struct{}) int {
	_, told := err.(*toldError) // only if it is not joined with another
	if !told {
		err = advised(err)
	}
	a.lines.unbound()
	a.result(result, err)
	lost := a.written(limit, hurry)
	if lost != nil && (err == nil || errors.Is(err, ErrInterrupted) && errors.Is(lost, syscall.EPIPE)) {
		err, told = fmt.Errorf("writing the output: %w", lost), false
	}
	if err == nil {
		return cli.ExitOK
	}
	if !told {
		a.tell(stderr, err)
	}
	return cli.ExitCode(err)
}

// written waits until the output is written, as conclude does, and returns why it is not.
func (a *App) written(limit time.Duration, hurry <-chan struct{}) error {
	drained := a.lines.drain(limit, hurry)
	if err := a.lines.failure(); err != nil {
		return err
	}
	if !drained {
		return errUnread
	}
	return nil
}

// tell prints the error, and does not wait long for a reader.
func (a *App) tell(stderr io.Writer, err error) {
	within(stderrLimit, func() { fmt.Fprintf(stderr, "%s: %s\n", a.Command.Name(), forPeople(err)) })
}

// A toldError is an error that was printed before the cleanup, which may take long.
type toldError struct{ error }

func (e *toldError) Unwrap() error { return e.error }

// within calls f and waits for it, no longer than limit.
func within(limit time.Duration, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case <-done:
	case <-late.C:
	}
}

// Signals counts the signals that end a program.
type Signals struct {
	last os.Signal
	at   time.Time
}

// oneSignal is how long the same signal counts as one. timeout(1) sends it to the program and
// then to the program's group, and a supervisor and a terminal may both send theirs.
const oneSignal = 500 * time.Millisecond

// Again notes a signal that came now, and reports whether that is the second one.
func (c *Signals) Again(s os.Signal, now time.Time) bool {
	if c.last == nil {
		c.last, c.at = s, now
		return false
	}
	return s != c.last || now.Sub(c.at) >= oneSignal
}

// Notified returns the signals that end the program, until stop is called. A closed
// pipe does not end it, but is an error of the write. Signals that nohup ignores stay
// ignored.
func Notified() (signals chan os.Signal, stop func()) {
	signals, pipes := make(chan os.Signal, 4), make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM)
	if !signal.Ignored(unix.SIGHUP) {
		signal.Notify(signals, unix.SIGHUP)
	}
	signal.Notify(pipes, unix.SIGPIPE)
	return signals, func() {
		signal.Stop(signals)
		signal.Stop(pipes)
	}
}
