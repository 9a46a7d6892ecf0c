package serve

import (
	"os"
	"time"

	"github.com/gpufd/gpufd/fence"
	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// PeerOptions are about the other side of a connection.
type PeerOptions struct {
	Timeout time.Duration                           // of each step of a conversation
	Goodbye time.Duration                           // the constant Goodbye, but in tests
	Rate    int                                     // records a second that are taken, or 0
	Policy  sock.Policy                             // which peers are admitted
	Process func(*sock.Conn) (*sock.Process, error) // Process, but in tests
}

// NewPeerOptions returns the defaults.
func NewPeerOptions() PeerOptions {
	return PeerOptions{Timeout: DefaultTimeout, Goodbye: Goodbye, Rate: defaultRate, Process: (*sock.Conn).Process}
}

// Options are those of a server.
type Options struct {
	PeerOptions
	Connections int // that are served at once
	PerPeer     int // of one process

	Allow     func(sock.Peer, wire.Offer, gpumem.Access) error // decides whether the peer gets the offer with that access, and with 0 whether it may know of it; or nil
	AllowName func(sock.Peer, string, gpumem.Access) error     // decides whether the peer may ask for the name; or nil
	Parts     func(sock.Peer, string) []string                 // names the parts of a name that is not offered; or nil
	Sock      []sock.ListenOption
	OnRefused func(sock.Peer, error) // is told of each peer that gets no lease; or nil

	Reassures bool // consumers hear that Allow is at work, and do not time out
}

// NewOptions returns the defaults.
func NewOptions() *Options {
	return &Options{PeerOptions: NewPeerOptions(), Connections: defaultConnections, PerPeer: defaultConnectionsPerPeer}
}

// asks reports whether the application decides who gets what.
func (o *Options) asks() bool { return o.Allow != nil || o.AllowName != nil }

// MaxData is how many bytes of application data an offer may carry.
const MaxData = 64 << 20

// Terms are those of an offer.
type Terms struct {
	Access       gpumem.Access // the most that a consumer may ask for
	ReadOnly     bool          // memory that can only be offered for writing, too, is refused
	Pending      bool          // its data is not there yet: Publish says when it is
	Data         []byte        // the application's own
	Leases       int           // after how many leases it ends, or 0
	Idle         time.Duration // after how long without a lease it ends, or 0
	Verdict      bool          // each consumer owes one
	Synchronized bool          // there is no work on the memory to wait for
	Replaces     bool          // it takes its name from the offer that has it
	Resumes      bool          // it is for consumers that have its memory, and does not have its name
	Grace        time.Duration // how long leases go on after it is replaced, or 0
	Slots        uint32        // that its memory is divided into, for lists, or 0
	Fence        *FenceTerms
	Cursors      *CursorTerms
	OnEvent      func(Event)
	OnLease      func(*Lease)
}

// FenceTerms are what an offer waits for in the end, and how long at most; nil waits for nothing.
type FenceTerms struct {
	Want   fence.Kind
	Within time.Duration
}

// CursorTerms is memory that each lease has of its own.
type CursorTerms struct {
	Size  uint64
	Begin func(*Lease, *os.File) error
}
