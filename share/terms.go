package share

import (
	"context"
	"os"
	"time"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

type peerOptions struct {
	timeout time.Duration
	goodbye time.Duration // goodbye, but in tests
	rate    int
	policy  sock.Policy
	process func(*sock.Conn) (*sock.Process, error) // Process, but in tests
}

func newPeerOptions() peerOptions {
	return peerOptions{timeout: DefaultTimeout, goodbye: goodbye, rate: defaultRate, process: (*sock.Conn).Process}
}

type listenOptions struct {
	peerOptions
	connections int
	perPeer     int
	decides     bool                                             // WithAuthorize was given
	allow       func(sock.Peer, wire.Offer, gpumem.Access) error // decides whether the peer gets the offer with that access, and with 0 whether it may know of it; or nil
	allowName   func(sock.Peer, string, gpumem.Access) error
	parts       func(sock.Peer, string) []string // or nil
	sock        []sock.ListenOption
}

// asks reports whether the application decides who gets what.
func (o *listenOptions) asks() bool { return o.allow != nil || o.allowName != nil }

type offerOptions struct {
	data         []byte
	leases       int
	idle         time.Duration
	verdict      bool
	synchronized bool
	replaces     bool // it takes its name from the offer that has it
	stands       bool // it lasts until it is closed
	resumed      bool // it is for consumers that have its memory, and does not have its name
	grace        time.Duration
	fence        *fenceOption
	cursors      *cursorOption
	onEvent      func(Event)
	onLease      func(*Lease)
}

// A fenceOption is what an offer waits for in the end; nil waits for nothing.
type fenceOption struct {
	ctx  context.Context
	want Fence
}

// cursorOption is memory that each lease has of its own.
type cursorOption struct {
	size  uint64
	begin func(*Lease, *os.File) error
}
