package producer

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/sock"
)

// refusalPause is how long refusals are counted by kind instead of printed.
const refusalPause = time.Second

// maxKinds is how many kinds are told apart in one pause. The rest are counted together.
const maxKinds = 16

// refusals prints the peers that were turned away: the first of each kind, and at the end of
// the pause that begins with it, how many more there were.
type refusals struct {
	app *app.App

	mu     sync.Mutex
	kinds  map[string]*refusal // those of this pause; nil outside of one
	others int
	pause  *time.Timer
	after  func(time.Duration, func()) *time.Timer // time.AfterFunc
}

// A refusal is the first of its kind.
type refusal struct {
	uid  uint32
	err  error
	more int
}

// see prints or counts a refusal.
func (r *refusals) see(peer sock.Peer, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kind := kindOf(peer, err)
	switch known := r.kinds[kind]; {
	case known != nil:
		known.more++
	case len(r.kinds) == maxKinds:
		r.others++
	default:
		r.begin(kind, peer, err)
		who := app.Fields{"uid": peer.UID, "pid": peer.PID, "error": err.Error()}
		r.app.Say("refused", who, "  turned a peer away: %v", err)
	}
}

// kindOf tells refusals apart by user and reason, whatever pid the reason names.
func kindOf(peer sock.Peer, err error) string {
	reason := strings.Map(func(c rune) rune {
		if '0' <= c && c <= '9' {
			return -1
		}
		return c
	}, err.Error())
	return fmt.Sprint(peer.UID, " ", reason)
}

// begin counts a kind, until the pause is over. It runs with mu held.
func (r *refusals) begin(kind string, peer sock.Peer, err error) {
	if r.kinds == nil {
		r.kinds, r.pause = map[string]*refusal{}, r.after(refusalPause, r.close)
	}
	r.kinds[kind] = &refusal{uid: peer.UID, err: err}
}

// close ends the pause, if there is one: it says how many more there were.
func (r *refusals) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pause != nil {
		r.pause.Stop()
	}
	for _, kind := range slices.Sorted(maps.Keys(r.kinds)) {
		if k := r.kinds[kind]; k.more > 0 {
			r.app.Say("refused", app.Fields{"more": k.more, "uid": k.uid, "error": k.err.Error()}, "  turned away %d more like this: %v", k.more, k.err)
		}
	}
	if r.others > 0 {
		r.app.Say("refused", app.Fields{"more": r.others, "error": "other users or reasons"}, "  turned away %d more: other users or reasons", r.others)
	}
	r.kinds, r.others, r.pause = nil, 0, nil
}
