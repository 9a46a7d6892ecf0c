package serve

import (
	"context"
	"os"
	"time"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

type PeerOptions struct {
	Timeout time.Duration
	Goodbye time.Duration // goodbye, but in tests
	Rate    int
	Policy  sock.Policy
	Process func(*sock.Conn) (*sock.Process, error) // Process, but in tests
}

func NewPeerOptions() PeerOptions {
	return PeerOptions{Timeout: DefaultTimeout, Goodbye: Goodbye, Rate: defaultRate, Process: (*sock.Conn).Process}
}

type Options struct {
	PeerOptions
	Connections int
	PerPeer     int
	Decides     bool                                             // WithAuthorize was given
	Allow       func(sock.Peer, wire.Offer, gpumem.Access) error // decides whether the peer gets the offer with that access, and with 0 whether it may know of it; or nil
	AllowName   func(sock.Peer, string, gpumem.Access) error
	Parts       func(sock.Peer, string) []string // or nil
	Sock        []sock.ListenOption
}

// asks reports whether the application decides who gets what.
func (o *Options) asks() bool { return o.Allow != nil || o.AllowName != nil }

type Terms struct {
	Data         []byte
	Leases       int
	Idle         time.Duration
	Verdict      bool
	Synchronized bool
	Replaces     bool // it takes its name from the offer that has it
	Stands       bool // it lasts until it is closed
	Resumed      bool // it is for consumers that have its memory, and does not have its name
	Grace        time.Duration
	Fence        *FenceTerms
	Cursors      *CursorTerms
	OnEvent      func(Event)
	OnLease      func(*Lease)
}

// A fenceOption is what an offer waits for in the end; nil waits for nothing.
type FenceTerms struct {
	Ctx  context.Context
	Want Fence
}

// cursorOption is memory that each lease has of its own.
type CursorTerms struct {
	Size  uint64
	Begin func(*Lease, *os.File) error
}
