package producer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/sock"
)

// A refuser is a producer's refusals, with pauses that end when the test says so.
type refuser struct {
	refusals
	pauses []func() // that began
}

// refuse turns a peer away.
func (r *refuser) refuse(uid uint32, pid int, reason string) {
	r.see(sock.Peer{UID: uid}, fmt.Errorf("pid %d: %w", pid, errors.New(reason)))
}

// over ends the last pause that began.
func (r *refuser) over() { r.pauses[len(r.pauses)-1]() }

// refused is what a producer prints of the refusals that f makes.
func refused(t *testing.T, f func(*refuser), args ...string) string {
	t.Helper()
	t.Setenv("GPUFD_DRIVER", "soft")
	var out, errs bytes.Buffer
	app := app.New("producer", "refuses.", &out)
	app.Body = func(context.Context) error {
		r := &refuser{}
		r.refusals = refusals{app: app, after: func(_ time.Duration, f func()) *time.Timer {
			r.pauses = append(r.pauses, f)
			return time.NewTimer(time.Hour)
		}}
		f(r)
		return nil
	}
	code := app.Run(args, &errs)
	require.Equal(t, 0, code, errs.String())
	_, said, _ := strings.Cut(out.String(), "\n") // behind the driver
	return said
}

// Refusals of one kind are one line, and then a count, which the end of the pause and
// the end of the program print.
func TestRefusalsAreFolded(t *testing.T) {
	require.Equal(t, `  turned a peer away: pid 0: no
  turned away 4 more like this: pid 0: no
  turned a peer away: pid 7: no
  turned away 1 more like this: pid 7: no
`, refused(t, func(r *refuser) {
		for pid := range 5 {
			r.refuse(1, pid, "no")
		}
		r.over()
		r.refuse(1, 7, "no")
		r.refuse(1, 8, "no")
		r.close()
		r.close()
		require.Len(t, r.pauses, 2)
	}))
}

// Kinds that take turns are told apart: by the user, and by the reason.
func TestRefusalsThatTakeTurnsAreFolded(t *testing.T) {
	require.Equal(t, `  turned a peer away: pid 0: garbage
  turned a peer away: pid 0: version 2
  turned a peer away: pid 0: garbage
  turned away 299 more like this: pid 0: garbage
  turned away 299 more like this: pid 0: version 2
  turned away 299 more like this: pid 0: garbage
`, refused(t, func(r *refuser) {
		for pid := range 300 {
			r.refuse(1, pid, "garbage")
			r.refuse(1, pid, "version 2")
			r.refuse(2, pid, "garbage")
		}
		r.over()
		require.Len(t, r.pauses, 1)
	}))
}

// However many kinds there are, few lines are printed; the rest are counted together.
func TestRefusalsOfManyKinds(t *testing.T) {
	said := refused(t, func(r *refuser) {
		for uid := range uint32(100) {
			r.refuse(uid, 1, "no")
		}
		r.over()
		r.refuse(99, 1, "no")
	})
	lines := strings.Split(strings.TrimSuffix(said, "\n"), "\n")
	require.Len(t, lines, maxKinds+2)
	require.Equal(t, []string{"  turned away 84 more: other users or reasons", "  turned a peer away: pid 1: no"}, lines[maxKinds:])
}

// The object of -json says what was counted.
func TestRefusalsInJSON(t *testing.T) {
	require.Regexp(t, `^{"event":"refused","error":"pid 3: no","pid":0,"uid":7}
{"event":"refused","error":"pid 3: no","more":1,"uid":7}
{"event":"result",[^\n]*}\n$`, refused(t, func(r *refuser) {
		r.refuse(7, 3, "no")
		r.refuse(7, 4, "no")
		r.close()
	}, "-json"))
}
