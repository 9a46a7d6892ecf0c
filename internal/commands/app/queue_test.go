package app

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A gate is a writer that blocks until it is opened.
type gate struct {
	opened  chan struct{}
	entered chan struct{} // a value for each Write
	out     bytes.Buffer
}

func newGate() *gate { return &gate{opened: make(chan struct{}), entered: make(chan struct{}, 1<<20)} }

func (g *gate) Write(b []byte) (int, error) {
	g.entered <- struct{}{}
	<-g.opened
	return g.out.Write(b)
}

// lines are what was written, once all is.
func (g *gate) lines(t *testing.T, q *queue) []string {
	t.Helper()
	require.True(t, q.drain(time.Minute, nil))
	return strings.Split(strings.TrimSuffix(g.out.String(), "\n"), "\n")
}

// isUnbound reports whether the last lines come.
func (q *queue) isUnbound() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.most == math.MaxInt
}

// Unread lines are kept up to a bound and then counted; a reader that goes on is told.
//
//fault:rows 73
func TestQueueOfWhatNobodyReads(t *testing.T) {
	for _, asJSON := range []bool{false, true} {
		g := newGate()
		o := newOutput(nil, asJSON)
		q := newQueue(g, o.notice, nil)
		o.w = q
		o.Say("first", nil, "first")
		<-g.entered // and blocks; the queue is empty
		for i := range maxLines + 7 {
			o.Say("line", Fields{"i": i}, "line %d", i)
		}
		require.False(t, q.drain(time.Millisecond, nil))
		close(g.opened)
		require.Eventually(t, func() bool { q.mu.Lock(); defer q.mu.Unlock(); return q.idle == nil }, time.Minute, time.Millisecond)
		o.Say("last", nil, "last")
		lines := g.lines(t, q)
		require.Len(t, lines, 1+maxLines+2)
		want := []string{fmt.Sprintf("line %d", maxLines-1), "… 7 lines were dropped: the output was not read", "last"}
		if asJSON {
			want = []string{fmt.Sprintf(`{"event":"line","i":%d}`, maxLines-1), `{"event":"dropped","lines":7}`, `{"event":"last"}`}
		}
		require.Equal(t, want, lines[maxLines:])
	}
}

// The last lines get in, with what was dropped before them.
//
//fault:rows 73
func TestQueueTakesTheLastLines(t *testing.T) {
	g := newGate()
	o := newOutput(nil, true)
	q := newQueue(g, o.notice, nil)
	o.w = q
	o.Say("first", nil, "first")
	<-g.entered
	for range maxLines + 1 {
		o.Say("line", nil, "line")
	}
	q.unbound()
	o.result(nil, nil)
	close(g.opened)
	lines := g.lines(t, q)
	require.Equal(t, `{"event":"dropped","lines":1}`, lines[len(lines)-2])
	require.Contains(t, lines[len(lines)-1], `"event":"result"`)
}

// The first failure is kept and told once.
//
//fault:rows 73
func TestQueueThatFails(t *testing.T) {
	r, w := io.Pipe()
	gone := errors.New("gone")
	require.NoError(t, r.CloseWithError(gone))
	told := 0
	q := newQueue(w, nil, func(err error) {
		require.ErrorIs(t, err, gone)
		told++
	})
	for range 3 {
		fmt.Fprintln(q, "x")
		q.drain(time.Minute, nil)
	}
	require.ErrorIs(t, q.failure(), gone)
	require.Equal(t, 1, told)
}
