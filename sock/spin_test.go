package sock

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// sleeps reports whether a goroutine of this process sleeps in Receive.
func sleeps() bool {
	stacks := make([]byte, 1<<20)
	for _, s := range strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
		if strings.Contains(s, "IO wait") && strings.Contains(s, "(*Conn).Receive") {
			return true
		}
	}
	return false
}

// A Receive that looks does not sleep within its time, and does after it. It finds what
// comes, and the end, either way.
func TestSpin(t *testing.T) {
	for _, c := range []struct {
		name string
		spin time.Duration
	}{{"looks", time.Hour}, {"looks for a moment", time.Microsecond}, {"sleeps", 0}} {
		t.Run(c.name, func(t *testing.T) {
			a, b := pair(t)
			b.SetSpin(c.spin)
			received := make(chan string)
			go func() {
				defer close(received)
				for {
					rec, err := b.Receive(context.Background())
					if err != nil {
						require.ErrorIs(t, err, ErrPeerLost)
						return
					}
					received <- string(rec.Data)
				}
			}()
			for _, what := range []string{"first", "second"} {
				if c.spin == time.Hour {
					for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); {
						require.False(t, sleeps())
					}
				} else {
					require.Eventually(t, sleeps, 10*time.Second, time.Millisecond)
				}
				require.NoError(t, a.Send(soon(t), []byte(what)))
				require.Equal(t, what, <-received)
			}
			require.NoError(t, a.Close())
			require.Empty(t, <-received)
		})
	}
}

// A zero Conn has nothing to look at.
func TestSpinOfNothing(t *testing.T) {
	var c *Conn
	c.SetSpin(time.Second)
	new(Conn).SetSpin(time.Second)
}
