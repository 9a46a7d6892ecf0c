// Package fence says how sure it is that a peer's work on shared memory has ended, after its lease has.
// The end of a lease alone says nothing: the kernel of a killed process goes on writing for
// milliseconds after the connection has ended.
package fence

import (
	"errors"
	"fmt"

	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/sock"
)

// A Kind is a kind of fence.
type Kind int

// The fences. Fenced is the stronger one: a wait for Released accepts it, too.
const (
	// Released: the peer has promised that nothing of its own uses the memory any more.
	Released Kind = iota + 1
	// Fenced: the connection is over, and the process that made it has died, so nothing
	// of it runs on the device any more. Other processes that it forked, or to which it
	// passed descriptors, may still use the memory.
	Fenced
)

// String returns the name.
func (k Kind) String() string {
	switch k {
	case Released:
		return "Released"
	case Fenced:
		return "Fenced"
	}
	return fmt.Sprintf("fence.Kind(%d)", int(k))
}

// Check returns an error unless k is one of the two.
func (k Kind) Check() error {
	if k != Released && k != Fenced {
		return fmt.Errorf("fence: %v is no fence to wait for: want Released or Fenced", k)
	}
	return nil
}

// ErrUnknown says that no wait can tell when a peer's work on the memory has ended. An [*Error] says
// why: the peer may run under MPS, where its work outlives it; the peer is older and does not say
// whether it does; the kernel gives no descriptor of its process; or the process is not watched any
// more.
var ErrUnknown = errors.New("fence: it cannot be known when the peer's work on the memory has ended")

// An Error names the peers whose work on the memory may go on.
type Error struct {
	Want  Kind
	Peers []sock.Peer // each once, 64 at most
	More  int         // leases of others
	Err   error       // what ended the wait; it matches ErrUnknown where that had no end
}

// Error names the peers.
func (e *Error) Error() string {
	more := ""
	if e.More > 0 {
		more = fmt.Sprintf("; and %d more", e.More)
	}
	return fmt.Sprintf("waiting for the fence %s of the peer (%s%s): %v", e.Want, plain.List(e.Peers), more, e.Err)
}

// Unwrap returns what ended the wait.
func (e *Error) Unwrap() error { return e.Err }
