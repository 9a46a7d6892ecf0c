package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
)

// Fields are the members of a JSON line.
type Fields map[string]any

// Output prints what happens, each line as soon as it is true: for people, or
// one JSON object a line. It is safe for concurrent use.
type Output struct {
	mu       sync.Mutex
	w        io.Writer // takes a line at a time; it does not block
	alive    func()    // told of each line and step, or nil
	json     bool
	terminal bool
	pending  bool                 // a progress line stands unfinished
	started  map[string]time.Time // of what is in progress
	shown    time.Time
	steps    Fields
	order    []string // of steps
	doing    string   // the step under way
}

func newOutput(w io.Writer, asJSON bool) *Output {
	return &Output{w: w, json: asJSON, steps: Fields{}, started: map[string]time.Time{}}
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// notice is the line that says how many were dropped.
func (o *Output) notice(dropped int) []byte {
	if o.json {
		return fmt.Appendf(nil, "{\"event\":\"dropped\",\"lines\":%d}\n", dropped)
	}
	return fmt.Appendf(nil, "… %s dropped: the output was not read\n", wereLines(dropped))
}

func wereLines(n int) string {
	if n == 1 {
		return "1 line was"
	}
	return fmt.Sprintf("%d lines were", n)
}

// live is a sign of life.
func (o *Output) live() {
	if o.alive != nil {
		o.alive()
	}
}

// Say prints one line for people, or an object of that event with fields.
func (o *Output) Say(event string, fields Fields, format string, args ...any) {
	o.live()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.clear()
	if !o.json {
		fmt.Fprintf(o.w, format+"\n", args...)
		return
	}
	o.object(event, fields)
}

// object prints a JSON line: the event first, then ok if there is one, then the
// rest in the order of its names. It runs with mu held.
func (o *Output) object(event string, fields Fields) {
	line := fmt.Appendf(nil, `{"event":%q`, event)
	rest := maps.Clone(fields)
	if ok, is := rest["ok"]; is {
		line = fmt.Appendf(line, `,"ok":%v`, ok)
		delete(rest, "ok")
	}
	b, err := json.Marshal(rest)
	if err != nil {
		b, _ = json.Marshal(Fields{"error": err.Error()})
	}
	if len(rest) > 0 {
		line = append(append(line, ','), b[1:len(b)-1]...)
	}
	fmt.Fprintf(o.w, "%s}\n", line)
}

// Step remembers how long a step took, for the result. A step done several
// times counts their sum.
func (o *Output) Step(name string, took time.Duration) {
	o.live()
	o.mu.Lock()
	defer o.mu.Unlock()
	us := float64(took.Nanoseconds()) / 1e3
	before, ok := o.steps[name].(float64)
	if !ok {
		o.order = append(o.order, name)
	}
	o.steps[name] = before + us
}

// enter remembers what is being done until leave is called.
func (o *Output) enter(name string) (leave func()) {
	o.live()
	o.mu.Lock()
	defer o.mu.Unlock()
	before := o.doing
	o.doing = name
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.doing = before
	}
}

// lastStep names what is being done, for a message.
func (o *Output) lastStep() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.doing == "" {
		return ""
	}
	return " in the step " + strconv.Quote(o.doing)
}

// SayDurations prints how long the steps took, for people; the result line of
// --json has them anyway.
func (o *Output) SayDurations() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.json || len(o.order) == 0 {
		return
	}
	o.clear()
	parts := make([]string, len(o.order))
	for i, name := range o.order {
		parts[i] = fmt.Sprintf("%s %.0f", name, o.steps[name])
	}
	fmt.Fprintf(o.w, "  durations in µs: %s\n", strings.Join(parts, ", "))
}

// Timed runs f as a step of that name.
func (o *Output) Timed(name string, f func() error) error {
	start := time.Now()
	defer o.enter(name)()
	err := f()
	o.Step(name, time.Since(start))
	return err
}

// Progress shows on a terminal how far a long step is.
func (o *Output) Progress(what string, done, total uint64) {
	o.live()
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	started, under := o.started[what]
	if !under {
		started, o.started[what] = now, now
	}
	if done >= total {
		delete(o.started, what)
	}
	if !o.terminal || now.Sub(started) < time.Second || now.Sub(o.shown) < 200*time.Millisecond {
		return
	}
	o.shown, o.pending = now, true
	fmt.Fprintf(o.w, "\r\x1b[K%s: %s of %s (%d %%)", what, Human(done), Human(total), done*100/max(total, 1))
}

// clear takes the progress line away. It runs with mu held.
func (o *Output) clear() {
	if o.pending {
		fmt.Fprint(o.w, "\r\x1b[K")
		o.pending = false
	}
}

// result prints the last line of --json.
func (o *Output) result(fields Fields, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.clear()
	if !o.json {
		return
	}
	all := Fields{"ok": err == nil, "exit": ExitCode(err), "steps_us": o.steps}
	maps.Copy(all, fields)
	if err != nil {
		all["error"] = OneLine(err)
	}
	o.object("result", all)
}

// forPeople is what an error says on one line; but what a context was lost to has a
// line of its own, and the rest stands below it.
func forPeople(err error) string {
	if !errors.Is(err, cu.ErrContextLost) {
		return OneLine(err)
	}
	return strings.ReplaceAll(err.Error(), "\n", "\n  ")
}

// OneLine joins what an error says on several lines.
func OneLine(err error) string {
	var b strings.Builder
	for line := range strings.Lines(err.Error()) {
		line = strings.TrimSpace(line)
		switch {
		case b.Len() == 0 || line == "":
		case strings.HasSuffix(b.String(), ":"):
			b.WriteString(" ")
		default:
			b.WriteString("; ")
		}
		b.WriteString(line)
	}
	return b.String()
}
