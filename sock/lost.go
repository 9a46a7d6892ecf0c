package sock

import (
	"fmt"
	"time"
)

// A LostError says that a peer's connection has ended without a farewell: the peer was killed or has
// failed. It matches [ErrPeerLost].
type LostError struct {
	Peer Peer
	Err  error           // what the connection said
	Dead <-chan struct{} // closed when the process that made the connection has died; nil if that cannot be known
}

// deathTime bounds how long a killed process takes to die: on a GPU its connection ends
// tens of milliseconds before.
const deathTime = 500 * time.Millisecond

// Died reports whether the process that made the connection has died, and has not only hung up. A
// process dies a moment after its connection has ended, so Died waits for half a second at most. It
// returns false if the end of the process cannot be known.
func (e *LostError) Died() bool {
	if e == nil || e.Dead == nil {
		return false
	}
	select {
	case <-e.Dead:
		return true
	case <-time.After(deathTime):
		return false
	}
}

// Error says what the connection said, and whether the process is known to have died.
func (e *LostError) Error() string {
	select {
	case <-e.Dead:
		return fmt.Sprintf("%v: its process has died", e.Err)
	default:
		return fmt.Sprintf("%v: it has said no farewell", e.Err)
	}
}

// Unwrap returns what the connection said.
func (e *LostError) Unwrap() error { return e.Err }
