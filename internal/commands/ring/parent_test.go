package ring

import (
	"context"
	"io"
	"os/exec"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/sock"
)

// exited is a member whose process has ended, after it said what last is, if
// anything.
func exited(t *testing.T, c *parent, last *end) *member {
	t.Helper()
	near, far, err := sock.NewPair()
	require.NoError(t, err)
	m := &member{id: len(c.members), cmd: exec.Command("true"), conn: near, exited: make(chan struct{})}
	require.NoError(t, m.cmd.Run())
	close(m.exited)
	if last != nil {
		require.NoError(t, far.TrySend(encode(message{Kind: ended, End: last})))
	}
	require.NoError(t, far.Close())
	c.members = append(c.members, m)
	go c.listen(m)
	return m
}

// A chunk that is wrong is exit 1 and named, also if another member is lost.
func TestWrongDataBesideALostMember(t *testing.T) {
	t.Setenv("GPUFD_DRIVER", "soft")
	c := &parent{app: app.New("ring", "", io.Discard), events: make(chan event)}
	c.app.Body = func(context.Context) error { return nil }
	require.Equal(t, cli.ExitOK, c.app.Run(nil, io.Discard), "it can say something now")
	bad := &mismatch{Offset: 7, Want: 1, Got: 2, Bytes: 1}
	exited(t, c, &end{Code: cli.ExitPeer, Error: "peer 2 lost"})
	exited(t, c, &end{Code: cli.ExitFailed, Error: bad.Error(), Wrong: bad})
	gone := exited(t, c, nil)
	err := c.end(c.lost(gone))
	require.Equal(t, cli.ExitFailed, cli.ExitCode(err))
	require.ErrorIs(t, err, sock.ErrPeerLost)
	require.Regexp(t, `^process 1: its chunk is wrong: at offset 7, want 0x01, got 0x02; no other is wrong\npeer 2 lost: its process, pid \d+, ended with exit code 0$`, err.Error())
}

// A member that says that it works is waited for, however long it takes; one that
// says nothing is not.
func TestWorkingIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &parent{app: app.New("ring", "", io.Discard), events: make(chan event)}
		c.app.Output, c.app.Timeout = app.NewOutput(io.Discard, false), 30*time.Second
		cmd := exec.Command("true")
		require.NoError(t, cmd.Run())
		m := &member{cmd: cmd}
		c.members = []*member{m}
		go func() {
			for range 10 {
				time.Sleep(c.app.Timeout - time.Second)
				c.events <- event{m, message{Kind: working}, nil}
			}
			c.events <- event{m, message{Kind: filled}, nil}
		}()
		require.NoError(t, c.await(t.Context(), message{Kind: fillStep}, filled))
		before := time.Now()
		err := c.await(t.Context(), message{Kind: fillStep}, filled)
		require.Equal(t, cli.ExitPeer, cli.ExitCode(err))
		require.ErrorContains(t, err, "was silent for 30s, at step 0; wait longer with --timeout")
		require.Equal(t, c.app.Timeout, time.Since(before))
	})
}

// two returns a parent of two members whose processes have ended, and a function that has one of
// them say something after a pause.
func two(t *testing.T) (c *parent, say func(id int, after time.Duration, what kind)) {
	t.Helper()
	c = &parent{app: app.New("ring", "", io.Discard), events: make(chan event, 100)}
	c.app.Output, c.app.Timeout = app.NewOutput(io.Discard, false), 30*time.Second
	for id := range 2 {
		cmd := exec.Command("true")
		require.NoError(t, cmd.Run())
		c.members = append(c.members, &member{id: id, cmd: cmd})
	}
	return c, func(id int, after time.Duration, what kind) {
		time.Sleep(after)
		c.events <- event{c.members[id], message{Kind: what}, nil}
	}
}

// On a busy machine one member may not have its turn for long. It is waited for as long
// as it lives and another has something done.
func TestLivingMembersAreWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, say := two(t)
		go func() {
			for i := range 200 {
				say(0, time.Second, living)
				if i%20 == 0 {
					say(1, 0, working)
				}
			}
			say(1, 0, filled)
			say(0, 0, filled)
		}()
		require.NoError(t, c.await(t.Context(), message{Kind: fillStep}, filled))
	})
}

// That all live does not help where none has anything done: a kernel may hang.
func TestNobodyDoesAnything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, say := two(t)
		over := make(chan struct{})
		go func() {
			defer close(over)
			say(1, 0, filled)
			for range 30 {
				say(0, time.Second-time.Millisecond, living)
				say(1, 0, living)
			}
		}()
		before := time.Now()
		err := c.await(t.Context(), message{Kind: fillStep, Step: 0}, filled)
		require.Equal(t, cli.ExitPeer, cli.ExitCode(err))
		require.ErrorContains(t, err, "process 0 (pid ")
		require.ErrorContains(t, err, "lives but has not finished step 0, and no process has done anything for 30s")
		require.Equal(t, c.app.Timeout, time.Since(before))
		<-over
	})
}

// One that others do not wait for is silent, whatever they have done meanwhile.
func TestSilentBesideBusyMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, say := two(t)
		go func() {
			for range 29 {
				say(1, time.Second, working)
			}
			say(1, 0, filled)
		}()
		err := c.await(t.Context(), message{Kind: fillStep}, filled)
		require.ErrorContains(t, err, "process 0 (pid ")
		require.ErrorContains(t, err, "was silent for 30s, at step 0")
	})
}
