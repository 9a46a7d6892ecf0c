package serve

import (
	"fmt"
	"sync"

	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/sock"
)

// How many connections a server serves at once, and records per second, by default.
const (
	defaultConnections        = 1024
	defaultConnectionsPerPeer = 256
	defaultRate               = 1000 // records a second
)

// places counts the connections that are served, in all and of each process.
type places struct {
	most, perPeer int

	mu    sync.Mutex
	taken int
	of    map[process]int
}

// A process is a peer. The pid is 0 for peers in PID namespaces that are not visible here,
// so all of those of one user count as one.
type process struct {
	uid uint32
	pid int32
}

func newPlaces(most, perPeer int) *places {
	return &places{most: most, perPeer: perPeer, of: map[process]int{}}
}

// take finds a place for a connection, which the caller gives back, or says why there is none.
func (p *places) take(peer sock.Peer) (giveBack func(), full string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	who := process{peer.UID, peer.PID}
	switch {
	case p.taken >= p.most:
		return nil, fmt.Sprintf("the producer has %s, and takes no more", plain.Count(p.most, "connection"))
	case p.of[who] >= p.perPeer && who.pid == 0:
		return nil, fmt.Sprintf("the producer has %s of a user's processes in other PID namespaces, and takes no more of these", plain.Count(p.perPeer, "connection"))
	case p.of[who] >= p.perPeer:
		return nil, fmt.Sprintf("the producer has %s of this process, and takes no more of it", plain.Count(p.perPeer, "connection"))
	}
	p.taken++
	p.of[who]++
	return func() { p.leave(who) }, ""
}

func (p *places) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken
}

func (p *places) leave(who process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if p.of[who]--; p.of[who] == 0 {
		delete(p.of, who)
	}
}
