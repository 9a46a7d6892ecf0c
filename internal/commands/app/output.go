package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/plain"
)

// Fields are the members of a JSON line.
type Fields map[string]any

// Output prints each line as soon as it is true, for people or as one JSON object per
// line. It is safe for concurrent use.
type Output struct {
	mu      sync.Mutex
	w       io.Writer // takes a line at a time; it does not block
	alive   func()    // told of each line and step, or nil
	json    bool
	quiet   bool             // people get only what Print prints
	columns func() int       // the width of the terminal; nil if there is none, or no progress is shown
	pending bool             // a progress line is on the terminal
	started map[string]begun // work in progress
	shown   time.Time
	steps   Fields
	order   []string // of steps
	doing   string   // the step under way
}

func newOutput(w io.Writer, asJSON bool) *Output {
	return &Output{w: w, json: asJSON, steps: Fields{}, started: map[string]begun{}}
}

// notice returns the line that says how many lines were dropped.
func (o *Output) notice(dropped int) []byte {
	if o.json {
		return fmt.Appendf(nil, "{\"event\":\"dropped\",\"lines\":%d}\n", dropped)
	}
	return fmt.Appendf(nil, "… %s %s dropped: the output was not read\n", cli.Count(dropped, "line"), map[bool]string{true: "was", false: "were"}[dropped == 1])
}

// live is a sign of life.
func (o *Output) live() {
	if o.alive != nil {
		o.alive()
	}
}

// Say prints one line for people, or an object of that event with fields.
func (o *Output) Say(event string, fields Fields, format string, args ...any) {
	if o.quiet && !o.json {
		o.live()
		return
	}
	o.Print(event, fields, format, args...)
}

// Print is Say for what a program was asked for, such as a list: it is printed even if the
// program is to print nothing else. Without an event it is for people alone.
func (o *Output) Print(event string, fields Fields, format string, args ...any) {
	o.live()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.clear()
	if !o.json {
		fmt.Fprintln(o.w, plain.Text(fmt.Sprintf(format, args...)))
		return
	}
	if event != "" {
		o.object(event, fields)
	}
}

// Note prints one line only for people: an earlier JSON object has the same facts.
func (o *Output) Note(format string, args ...any) {
	o.Say("", nil, format, args...)
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
	fmt.Fprintf(o.w, "%s}\n", plain.JSON(line))
}

// Step remembers how long a step took, for the result. The times of a repeated step add
// up.
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

// lastStep names the step under way, for a message.
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
	if o.json || o.quiet || len(o.order) == 0 {
		return
	}
	o.clear()
	parts := make([]string, len(o.order))
	for i, name := range o.order {
		parts[i] = name + " " + Brief(time.Duration(o.steps[name].(float64)*1e3))
	}
	fmt.Fprintf(o.w, "  durations: %s\n", strings.Join(parts, ", "))
}

// Brief returns d with its unit, to three digits.
func Brief(d time.Duration) string {
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit).String()
}

// Timed runs f as a step of that name.
func (o *Output) Timed(name string, f func() error) error {
	start := time.Now()
	defer o.enter(name)()
	err := f()
	o.Step(name, time.Since(start))
	return err
}

// result prints the last line of --json.
func (o *Output) result(fields Fields, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.clear()
	o.columns = nil // no more progress lines
	if !o.json {
		return
	}
	all := Fields{"ok": err == nil, "exit": cli.ExitCode(err), "steps_us": o.steps}
	maps.Copy(all, fields)
	if err != nil {
		all["error"] = cli.OneLine(err)
	}
	o.object("result", all)
}

// forPeople returns an error on one line, as it can be printed. If a context was lost, the cause has its own
// line, and the rest stands below it.
func forPeople(err error) string {
	if !errors.Is(err, cu.ErrContextLost) {
		return cli.OneLine(err)
	}
	return plain.Lines(strings.ReplaceAll(err.Error(), "\n", "\n  "))
}
