package main

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/share"
)

// refusalPause is how long refusals of one kind are counted and not printed.
const refusalPause = time.Second

// refusals prints the peers that were turned away: the first of a kind, and then how
// many more there were.
type refusals struct {
	app *cli.App

	mu    sync.Mutex
	kind  string // that is counted, or nothing
	more  int
	pause *time.Timer
	after func(time.Duration, func()) *time.Timer // time.AfterFunc
}

// see takes a refusal.
func (r *refusals) see(e share.Event, who cli.Fields) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kind := kindOf(e)
	if kind == r.kind {
		r.more++
		return
	}
	r.flush()
	who["error"] = e.Err.Error()
	r.app.Say("refused", who, "  turned a peer away: %v", e.Err)
	r.kind, r.pause = kind, r.after(refusalPause, func() { r.end(kind) })
}

// kindOf tells refusals apart by user and reason, whatever pid the reason names.
func kindOf(e share.Event) string {
	reason := strings.Map(func(c rune) rune {
		if '0' <= c && c <= '9' {
			return -1
		}
		return c
	}, e.Err.Error())
	return fmt.Sprint(e.Peer.UID, " ", reason)
}

// end says how many more there were of a kind, if it is still counted.
func (r *refusals) end(kind string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kind == kind {
		r.flush()
	}
}

// close says what is left to say.
func (r *refusals) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flush()
}

// flush says how many more there were, and counts no more. It runs with mu held.
func (r *refusals) flush() {
	if r.pause != nil {
		r.pause.Stop()
	}
	if r.more > 0 {
		r.app.Say("refused", cli.Fields{"more": r.more}, "  turned a peer away: and %d more", r.more)
	}
	r.kind, r.more, r.pause = "", 0, nil
}
