package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrInterrupted is the cause of a context that SIGINT, SIGTERM or SIGHUP ended, or
// that ended because nobody reads the output any more.
var ErrInterrupted = errors.New("interrupted")

// errNoReader is what a closed pipe, as of "| head -1", ends a program with.
var errNoReader = fmt.Errorf("%w: nobody reads the output any more", ErrInterrupted)

// errUnread is the error of a program whose last lines nobody took.
var errUnread = errors.New("nobody reads the last lines")

// How long the last things may take. An end that is forced does them all within a
// second.
const (
	drainLimit  = time.Second
	removeLimit = 400 * time.Millisecond
	forcedLimit = 300 * time.Millisecond
	stderrLimit = 200 * time.Millisecond
)

// An ending is how a program comes to its end, orderly or forced: whichever is first.
type ending struct {
	guard
	once   sync.Once
	exit   func(code int) // os.Exit
	forced chan struct{}  // closed when a forced end is over; tests survive one
	code   int            // of the forced end
	again  chan struct{}  // closed by a second signal: it ends the wait for the last lines
	drain  time.Duration  // how long that wait may take; drainLimit

	mu     sync.Mutex
	remove map[int]func()
	next   int
}

func newEnding() *ending {
	return &ending{exit: os.Exit, forced: make(chan struct{}), again: make(chan struct{}), drain: drainLimit, remove: map[int]func(){}}
}

// OnAbort has f called when the program is ended by force, because its orderly end does
// not come; f removes what would be left behind. A forced end waits for f less than
// half a second. forget says that there is nothing to remove any more.
func (a *App) OnAbort(f func()) (forget func()) {
	e := a.ending
	e.mu.Lock()
	defer e.mu.Unlock()
	n := e.next
	e.next++
	e.remove[n] = f
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.remove, n)
	}
}

// Waiting says that the program waits for others, with bounds of its own, until over is
// called. At any other time --timeout without a sign of life is taken for a call that
// hangs, and ends the program.
func (a *App) Waiting() (over func()) { return a.ending.wait() }

// watch ends the program in order when a signal comes, and by force when another one
// does or the end does not come. It returns when over is closed.
func (a *App) watch(signals <-chan os.Signal, over <-chan struct{}, cancel context.CancelCauseFunc, stderr io.Writer) {
	limit, again := allowance(a.Timeout), sync.OnceFunc(func() { close(a.ending.again) })
	tick := time.NewTicker(limit / guardTicks)
	defer tick.Stop()
	for {
		select {
		case s := <-signals:
			if a.ending.end() {
				again()
				a.abort(stderr, Codef(ExitFailed, "%s came a second time: ended at once, without giving back device memory in order", s))
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

// hangs is the error of a program that gave no sign of life for so long.
func (a *App) hangs(limit time.Duration, ending bool) error {
	if ending {
		return Codef(ExitPeer, "was told to end and has not within %s: a call of the driver or the kernel hangs%s; ended by force", limit, a.lastStep())
	}
	return Codef(ExitPeer, "nothing happened for %s: a call of the driver or the kernel hangs%s; ended by force; wait longer with --timeout", limit, a.lastStep())
}

// abort ends the program by force, within a second.
func (a *App) abort(stderr io.Writer, err error) {
	a.ending.once.Do(func() {
		within(removeLimit, a.ending.removeAll)
		a.ending.code = a.conclude(stderr, nil, err, forcedLimit, nil) // Result is not safe to read now
		close(a.ending.forced)
		a.ending.exit(a.ending.code)
	})
}

// finish ends the program in order, unless it is being ended by force. Its last lines are
// waited for until a second signal comes.
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
	err = advised(err)
	a.lines.unbound()
	a.result(result, err)
	lost := a.written(limit, hurry)
	if lost != nil && (err == nil || errors.Is(err, ErrInterrupted) && errors.Is(lost, syscall.EPIPE)) {
		err = fmt.Errorf("writing the output: %w", lost)
	}
	if err == nil {
		return ExitOK
	}
	return a.fail(stderr, err)
}

// written waits until the output is written, as conclude does, and says why it is not.
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

// fail prints the error, also where nobody reads it, and returns its exit code.
func (a *App) fail(stderr io.Writer, err error) int {
	within(stderrLimit, func() { fmt.Fprintf(stderr, "%s: %s\n", a.name, forPeople(err)) })
	return ExitCode(err)
}

// removeAll calls what OnAbort was given, side by side: none waits for one that hangs.
func (e *ending) removeAll() {
	e.mu.Lock()
	defer e.mu.Unlock()
	var all sync.WaitGroup
	for _, f := range e.remove {
		all.Go(f)
	}
	all.Wait()
}

// within calls f and waits for it, for so long at most.
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

// Notified returns the signals that end the program, until stop is called. A closed
// pipe is an error of its writer and not the end. What nohup ignores stays ignored.
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
