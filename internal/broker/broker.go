package broker

import (
	"slices"
	"time"

	"github.com/gpufd/gpufd/internal/wire"
)

// Options say what a broker asks the application.
type Options struct {
	Consults bool // the application decides who gets an offer
	Hides    bool // a session that names no offer does not learn which there are
}

// A Broker is the state of one server. It is not safe for concurrent use.
type Broker struct {
	opts     Options
	now      time.Time
	actions  []Action
	names    map[string]*name
	offers   map[OfferID]*offer
	sessions map[SessionID]*session
	process  map[ProcessID]*process
	memory   map[MemoryID][]*offer // offers with a Fence, which have not finished
	closed   bool
}

// New returns a broker without names.
func New(o Options) *Broker {
	return &Broker{
		opts: o, names: map[string]*name{}, offers: map[OfferID]*offer{}, sessions: map[SessionID]*session{},
		process: map[ProcessID]*process{}, memory: map[MemoryID][]*offer{},
	}
}

// Step applies an event, and returns what is to be done now. The actions are the caller's until
// the next Step. An event of an offer or a session that has ended does nothing, but that Prepare
// and Publish answer Taken.
func (b *Broker) Step(now time.Time, e Event) []Action {
	b.now, b.actions = now, b.actions[:0]
	e.apply(b)
	return b.actions
}

func (b *Broker) do(a Action) { b.actions = append(b.actions, a) }

// A name is what a name stands for, and who waits for it.
type name struct {
	current  *offer     // published, or nil
	prepared *offer     // its descriptors are there, or nil
	beside   []*offer   // published, for sessions that resume
	makers   int        // offers that are being made: sessions wait for them, where there is no current offer
	queue    []*session // in the order of their coming
	done     uint64     // how far the next offer is
	total    uint64
}

// at returns the entry of a name, which it makes if there is none.
func (b *Broker) at(text string) *name {
	n := b.names[text]
	if n == nil {
		n = &name{}
		b.names[text] = n
	}
	return n
}

// tidy drops the entry of a name that stands for nothing.
func (b *Broker) tidy(text string) {
	if n := b.names[text]; n != nil && n.current == nil && len(n.beside) == 0 && n.makers == 0 {
		delete(b.names, text)
	}
}

// ProgressPause is the shortest time between two reports of progress to one session.
const ProgressPause = 250 * time.Millisecond

func (e Work) apply(b *Broker) {
	n := b.names[e.Name]
	if n == nil || n.makers == 0 {
		return
	}
	n.done, n.total = e.Done, e.Total
	waiting := slices.Clone(n.queue)
	if n.prepared != nil {
		for _, s := range n.prepared.live {
			if s.state == stateGranted {
				waiting = append(waiting, s)
			}
		}
		waiting = append(waiting, n.prepared.behind...)
	}
	if n.current != nil {
		waiting = append(waiting, n.current.behind...)
	}
	for _, s := range waiting {
		b.report(s, n)
	}
}

// report tells a session how far the offer is that it waits for, unless it has just heard.
func (b *Broker) report(s *session, n *name) {
	if n.total == 0 || b.now.Sub(s.told) < ProgressPause {
		return
	}
	s.told = b.now
	b.do(Progress{s.id, n.done, n.total})
}

func (e Close) apply(b *Broker) {
	b.closed = true
	for _, id := range sorted(b.sessions) {
		if s := b.sessions[id]; s.lease == nil {
			b.refuse(s, refusedClosed)
		}
	}
	for _, id := range sorted(b.offers) {
		if o := b.offers[id]; !o.over {
			b.end(o, o.endReason(e.Restarting), false)
		}
	}
}

// refusedClosed is for sessions of a server that is closed.
var refusedClosed = wire.Refuse{Code: wire.RefusedName, Text: "the producer ended before its offer was ready"}
