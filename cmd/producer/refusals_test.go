package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
)

// Refusals of one kind are one line, and then a count; another kind, the end of the
// pause and the end of the program print it.
func TestRefusalsAreFolded(t *testing.T) {
	t.Setenv("GPUFD_DRIVER", "soft")
	var out, errs bytes.Buffer
	app := cli.New("producer", "refuses.", &out)
	code := app.Run(nil, &errs, func(context.Context) error {
		var pause func()
		r := refusals{app: app, after: func(_ time.Duration, f func()) *time.Timer {
			pause = f
			return time.NewTimer(time.Hour)
		}}
		refuse := func(uid uint32, pid int) {
			r.see(share.Event{Peer: sock.Peer{UID: uid}, Err: fmt.Errorf("pid %d: %w", pid, errors.New("no"))}, cli.Fields{})
		}
		for pid := range 5 {
			refuse(1, pid)
		}
		refuse(2, 7)
		refuse(2, 8)
		pause()
		refuse(2, 9)
		refuse(2, 10)
		r.close()
		r.close()
		return nil
	})
	require.Equal(t, 0, code, errs.String())
	_, said, _ := strings.Cut(out.String(), "\n")
	require.Equal(t, `  turned a peer away: pid 0: no
  turned a peer away: and 4 more
  turned a peer away: pid 7: no
  turned a peer away: and 1 more
  turned a peer away: pid 9: no
  turned a peer away: and 1 more
`, said)
}
