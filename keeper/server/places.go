package server

import (
	"fmt"
	"sync"

	"github.com/gpufd/gpufd/keeper/internal/state"
	"golang.org/x/sys/unix"
)

// The bounds of the control socket: what clients have there, before anything is kept. A part of
// each is reserved for the keeper's own user.
const (
	maxClients      = 1024     // connections, if there is memory for them (budget); a quarter for one uid, an eighth for the keeper's own
	maxClientsOfUID = 256      // of one uid
	maxReceived     = 4 * 4096 // descriptors that came for parts that are not delivered, if there may be twice as many files open
	codeBusy        = "busy"
)

// places bound what users have of something: in all, each, and what is left to the owner.
type places struct {
	what              string
	most, each, owner int // owner: of most
	ownerUID          uint32

	mu    sync.Mutex
	taken int
	of    map[uint32]int
}

func newPlaces(what string, most, each, owner int, ownerUID uint32) *places {
	return &places{what: what, most: most, each: each, owner: owner, ownerUID: ownerUID, of: map[uint32]int{}}
}

// take takes n places for a user, or none and returns the reason. leave gives them back.
func (p *places) take(uid uint32, n int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	most := p.most
	if uid != p.ownerUID {
		most -= p.owner
	}
	switch {
	case p.of[uid]+n > p.each:
		return &state.Error{Code: codeBusy, Message: fmt.Sprintf("the keeper has %d %s of uid %d, and takes %d at most: end some, or come again", p.of[uid], p.what, uid, p.each)}
	case p.taken+n > most:
		return &state.Error{Code: codeBusy, Message: fmt.Sprintf("the keeper has %d %s, and takes %d at most: come again", p.taken, p.what, most)}
	}
	p.taken += n
	p.of[uid] += n
	return nil
}

func (p *places) leave(uid uint32, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken -= n
	if p.of[uid] -= n; p.of[uid] == 0 {
		delete(p.of, uid)
	}
}

// receivable returns how many descriptors may wait for their delivery: at most half of the files
// that this process may open.
func receivable() int {
	var open unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &open); err != nil {
		return maxReceived
	}
	return int(min(maxReceived, open.Cur/2))
}
