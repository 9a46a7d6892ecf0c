package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
)

// Answers that are no result.
const (
	crashes = "crashes"                  // the process died of a signal
	varies  = "varies"                   // expected of the H200: any of these, or any error, as chance will have it
	hangs   = "hangs"                    // the call did not return
	either  = "SUCCESS or INVALID_VALUE" // expected of the H200: chance decides

	couldNotAsk = "failed" // how a child ended otherwise begins so
)

// A row is one question to the driver in a process of its own.
type row struct {
	what string
	want any // what both drivers answer, or the H200
	id   string
	soft any // with id, what the software driver answers
	env  []string
	ask  func(t testing.TB) any
}

// differs makes r a row for which the software driver answers otherwise.
func (r row) differs(id string, soft any) row {
	r.id, r.soft = id, soft
	return r
}

// asked is a row that asks in the first device's primary context.
func asked(what string, want any, ask func(t testing.TB, c sys.Caller) any) row {
	return row{what: what, want: want, ask: func(t testing.TB) any { return ask(t, inContext(t)) }}
}

// about is a row that asks about a thing, which is made for it.
func about[T any](thing func(testing.TB) (sys.Caller, T), what string, want any, ask func(sys.Caller, T) any) row {
	return row{what: what, want: want, ask: func(t testing.TB) any { return ask(thing(t)) }}
}

// rows are questions that share a process until one of them ends it. The
// environment is the first one's.
type rows struct {
	name  string
	all   []row
	alone bool // each has a process of its own
}

// children are the processes that tests start.
var children = cutest.Children{}

// sheet registers rows under a name, while package variables are made.
func sheet(name string, all ...row) *rows {
	s := &rows{name: name, all: all}
	if children[name] != nil {
		panic("two sheets " + name)
	}
	children[name] = s.child
	return s
}

// alone is sheet for rows that change the process: each has one of its own.
func alone(name string, all ...row) *rows {
	s := sheet(name, all...)
	s.alone = true
	return s
}

// check asks everything, in as many processes as it takes.
func (s *rows) check(t *testing.T) {
	t.Helper()
	for i := 0; i < len(s.all); {
		for _, have := range s.answers(t, i) {
			s.all[i].check(t, have)
			i++
		}
	}
}

func (r *row) check(t testing.TB, have string) {
	t.Helper()
	if r.id == "" {
		check(t, r.what, r.want, have)
		return
	}
	differs(t, r.id, r.what, r.want, r.soft, have)
}

// answerMark begins the lines that are answers.
const answerMark = "answer: "

// child answers the rows from the one that its argument names on, a line each.
func (s *rows) child() error {
	cutest.ExpectLeaks() // what rows make goes with the process
	runtime.LockOSThread()
	from, err := strconv.Atoi(os.Args[1])
	if err != nil {
		return err
	}
	t := &childTB{}
	for _, r := range s.all[from:] {
		answer(r.ask(t))
		if s.alone {
			break
		}
	}
	return nil
}

// answer prints one.
func answer(a any) { fmt.Println(answerMark + word(a)) }

// answers starts a process that begins with row from. The last answer may be
// that it crashed; there is at least one.
func (s *rows) answers(t testing.TB, from int) (answers []string) {
	t.Helper()
	ctx := soon(t)
	cmd := cutest.Child(ctx, s.name, s.all[from].env...)
	cmd.Args = append(cmd.Args, strconv.Itoa(from))
	var out, trouble bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &trouble
	err := cmd.Run()
	for line := range strings.Lines(out.String()) {
		if a, ok := strings.CutPrefix(line, answerMark); ok {
			answers = append(answers, strings.TrimSpace(a))
		}
	}
	if err != nil {
		answers = append(answers, end(ctx, err, trouble.String()))
	}
	require.NotEmpty(t, answers, "%s", &trouble)
	if s.alone {
		return answers[:1]
	}
	return answers[:min(len(answers), len(s.all)-from)]
}

// end tells how a child ended that did not answer everything.
func end(ctx context.Context, err error, trouble string) string {
	if ctx.Err() != nil {
		return hangs
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && (!exit.Exited() || strings.Contains(trouble, "SIGSEGV")) {
		return crashes
	}
	return fmt.Sprintf("%s (%v): %s", couldNotAsk, err, trouble)
}

// within asks for the result of a call that may not return. There is no other
// way to tell than to wait.
func within(limit time.Duration, call func() sys.CUresult) any {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	result := make(chan sys.CUresult, 1)
	go func() { result <- call() }()
	select {
	case r := <-result:
		return r
	case <-ctx.Done():
		return hangs
	}
}

// childTB is the testing.TB of a child, so that helpers work there. What they
// would clean up goes with the process.
type childTB struct{ testing.TB }

func (*childTB) Helper()                   {}
func (*childTB) Cleanup(func())            {}
func (*childTB) Name() string              { return "child" }
func (*childTB) Logf(string, ...any)       {}
func (*childTB) Errorf(f string, a ...any) { fmt.Fprintf(os.Stderr, f+"\n", a...) }
func (*childTB) FailNow()                  { os.Exit(3) }
func (t *childTB) Fatal(a ...any)          { t.Errorf("%s", fmt.Sprint(a...)); t.FailNow() }
func (t *childTB) Skip(a ...any)           { t.Fatal(a...) }
