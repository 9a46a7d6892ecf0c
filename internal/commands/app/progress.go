package app

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/plain"
)

// NewOutput returns an Output that prints to w for people, for a command that is not an
// [App]. The caller sets progress if w leads to a terminal.
func NewOutput(w io.Writer, progress bool) *Output {
	o := newOutput(w, false)
	if progress {
		o.columns = columnsOf(w)
	}
	return o
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// ShowsProgress reports whether lines of progress are shown on w.
func ShowsProgress(w io.Writer) bool { return isTerminal(w) && os.Getenv("TERM") != "dumb" }

// usualColumns is the assumed width of a terminal that does not tell.
const usualColumns = 80

// columnsOf returns a function that asks the terminal w, or standard output if w is not a
// file, for its width. The width changes with the window.
func columnsOf(w io.Writer) func() int {
	f, ok := w.(*os.File)
	if !ok {
		f = os.Stdout
	}
	return func() int {
		size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
		if err != nil || size.Col == 0 {
			return usualColumns
		}
		return int(size.Col)
	}
}

// How soon progress is shown, and how often the line is rewritten.
const (
	progressAfter = time.Second
	progressEvery = 200 * time.Millisecond
)

// begun is when work was first heard of, and how much was done by then.
type begun struct {
	at   time.Time
	done uint64
}

// Progress shows on a terminal how far a long step has come, how fast and how long it will
// take. It is a sign of life.
func (o *Output) Progress(what string, done, total uint64) {
	o.live()
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	started, under := o.started[what]
	if !under {
		started = begun{now, done}
		o.started[what] = started
	}
	if done >= total {
		delete(o.started, what)
	}
	if now.Sub(started.at) >= progressAfter && now.Sub(o.shown) >= progressEvery {
		o.shown = now
		o.show(what + ": " + cli.PartOf(done, total) + pace(done-min(done, started.done), total-min(total, done), now.Sub(started.at)))
	}
}

// pace says how fast so much was done, and how long the rest takes at that; nothing if nothing
// was done. The numbers may come from a peer, and be nonsense.
func pace(done, rest uint64, took time.Duration) string {
	rate := float64(done) / took.Seconds()
	left := float64(rest) / rate
	if !(rate >= 1 && rate < 1<<63) || left > maxTimeout.Seconds() {
		return ""
	}
	return fmt.Sprintf(", %s/s, %s left", cli.Human(uint64(rate)), time.Duration(left*float64(time.Second)).Round(time.Second))
}

// Busy shows on a terminal what the program waits for, and how long already, until stop is
// called, which removes the line. It calls what again and again, on another goroutine.
// Busy is not a sign of life.
func (o *Output) Busy(what func() string) (stop func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.columns == nil {
		return func() {}
	}
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		o.showBusy(what, over)
	}()
	return sync.OnceFunc(func() {
		close(over)
		<-done
		o.Settle()
	})
}

// Waiting prints the line to w if the caller has not called stop within a second. Call it before a
// wait that may take long, so that the user knows what the program waits for.
func Waiting(w io.Writer, line string) (stop func()) {
	said := make(chan struct{})
	late := time.AfterFunc(progressAfter, func() {
		defer close(said)
		fmt.Fprintln(w, plain.Text(line))
	})
	return sync.OnceFunc(func() {
		if !late.Stop() {
			<-said // so that the line comes before what the caller prints next
		}
	})
}

// showBusy rewrites the line every second until over is closed.
func (o *Output) showBusy(what func() string, over <-chan struct{}) {
	began := time.Now()
	tick := time.NewTicker(progressAfter)
	defer tick.Stop()
	for {
		select {
		case <-over:
			return
		case <-tick.C:
			line := fmt.Sprintf("%s (%s)", what(), time.Since(began).Truncate(time.Second))
			o.mu.Lock()
			o.show(line)
			o.mu.Unlock()
		}
	}
}

// show rewrites the progress line, if there is a terminal. It runs with mu held.
func (o *Output) show(line string) {
	if o.columns == nil {
		return
	}
	o.pending = true
	fmt.Fprintf(o.w, "\r\x1b[K%s", fitting(line, o.columns()-1)) // some terminals wrap behind the last column
}

// clear removes the progress line. It runs with mu held.
func (o *Output) clear() {
	if o.pending {
		fmt.Fprint(o.w, "\r\x1b[K")
		o.pending = false
	}
}

// Settle removes the progress line before something else writes to the terminal.
func (o *Output) Settle() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.clear()
}

// fitting returns what of line fits into so many columns. Runes that might need two
// columns count as two.
func fitting(line string, columns int) string {
	var b strings.Builder
	for _, r := range line {
		if !unicode.IsPrint(r) { // of the name of a file
			r = '?'
		}
		if columns--; r >= firstWide {
			columns--
		}
		if columns < 0 {
			break
		}
		b.WriteRune(r)
	}
	return b.String()
}

// firstWide is the first rune that takes two columns, of Hangul.
const firstWide = 0x1100
