package server

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/cgroup"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/keeper/internal/state"
)

// A budget is the memory, in bytes, that a keeper takes at most for requests of others. All of
// it follows from the limit of the keeper's control group. docs/security.md has the numbers.
type budget struct {
	limit       uint64
	connections int    // of each of the two sockets
	requests    uint64 // that have begun
	answers     uint64 // that are being sent
	manifest    uint64 // what is kept, as it is written down
	tables      uint64
}

// A keeper without a limit takes as much as with standardMemory, and one with less than
// leastMemory as much as with that.
const (
	standardMemory = 1 << 30
	leastMemory    = 64 << 20
	mostMemory     = 2 << 30 // more is of no use
)

// memoryLimit returns the limit of the control group; tests replace it.
var memoryLimit = cgroup.MemoryLimit

func newBudget() budget {
	limit, ok := memoryLimit()
	if !ok {
		limit = standardMemory
	}
	return budgetFor(min(max(limit, leastMemory), mostMemory))
}

func budgetFor(limit uint64) budget {
	return budget{
		limit:       limit,
		connections: int(min(limit/(256<<10), maxClients)),
		requests:    limit / 64,
		answers:     limit / 16,
		manifest:    limit / 32,
		tables:      limit / 10,
	}
}

// The memory that each thing takes, measured and rounded up.
const (
	idleKeeper     = 16 << 20 // the program, its threads and what it has read of its own file
	perLease       = 40 << 10 // a connection of a reader
	perClient      = 18 << 10 // a connection of the control socket
	perDecoding    = 16       // a request that is being read, as Go's values; one at a time
	perManifest    = 6        // its lines, the same as Go's values, the next manifest, two files
	perTable       = 2        // the file that readers get, and the text while it is offered
	perAnswerMaker = 1 << 20  // a name as JSON; what is in answers is counted there
)

// most returns what all that adds up to.
func (b budget) most() uint64 {
	return idleKeeper + uint64(b.connections)*(perLease+perClient) + b.requests + perDecoding*protocol.MaxMessage +
		b.answers + perAnswerMaker + perManifest*b.manifest + perTable*b.tables
}

// bounds returns the bounds of the state, beside a pool of so many chunks.
func (b budget) bounds(pool int) state.Bounds {
	return state.Bounds{Room: b.manifest, Tables: b.tables, Files: keepable(pool)}
}

// filesOfChunk are the descriptors of a chunk of the pool: one that the keeper has, and one that a mover gets.
const filesOfChunk = 2

// keepable returns how many descriptors may be open for kept memory: three quarters of those that
// this process may have, less those of a pool, but a quarter at least. Connections and all else share the rest.
func keepable(pool int) uint64 {
	var open unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &open); err != nil {
		return 0
	}
	quarter := open.Cur / 4
	return max(open.Cur-quarter-min(filesOfChunk*uint64(pool), open.Cur-quarter), quarter)
}

// A pool is memory that users take for a short time. Each has its share of it (state.Share).
type pool struct {
	what  string
	most  uint64
	owner uint32

	mu    sync.Mutex
	taken uint64
	of    map[uint32]uint64
}

func newPool(what string, most uint64, owner uint32) *pool {
	return &pool{what: what, most: most, owner: owner, of: map[uint32]uint64{}}
}

// Take takes n bytes for a user, or none and returns the reason. Leave gives them back.
func (p *pool) Take(uid uint32, n int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := p.of[uid]
	may := state.Share(p.most, p.taken-own, uid == p.owner)
	if own+uint64(n) > may {
		return &state.Error{Code: codeBusy, Message: fmt.Sprintf("the keeper has %d bytes of %s of uid %d, and takes %d of it now: end some, or come again", own, p.what, uid, may)}
	}
	p.taken += uint64(n)
	p.of[uid] += uint64(n)
	return nil
}

func (p *pool) Leave(uid uint32, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken -= uint64(n)
	if p.of[uid] -= uint64(n); p.of[uid] == 0 {
		delete(p.of, uid)
	}
}

// used returns what a user has taken.
func (p *pool) used(uid uint32) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.of[uid]
}
