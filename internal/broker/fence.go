package broker

import (
	"cmp"
	"slices"

	"github.com/gpufd/gpufd/gpumem"
)

// Memory that a consumer could write is fenced when its work on it has ended: its connection is
// over, and it has said so or its process has died. Offers with a Fence wait for that when they
// are over, and so do later offers of the same memory.

// A process is one that has sessions or fences.
type process struct {
	users  int    // sessions, and fences
	fences int    // offers that wait for it
	dead   bool   // it has died
	doubt  string // why its end cannot be known any more, or ""
}

// A writer is the process of a session whose lease has ended and that may still write.
type writer struct {
	process ProcessID
	peer    Peer
}

// use counts a session or a fence of a process.
func (b *Broker) use(id ProcessID) {
	if id == 0 {
		return
	}
	p := b.process[id]
	if p == nil {
		p = &process{}
		b.process[id] = p
	}
	p.users++
}

// unuse undoes use.
func (b *Broker) unuse(id ProcessID) {
	if p := b.process[id]; p != nil {
		if p.users--; p.users == 0 {
			delete(b.process, id)
		}
	}
}

// Awaits reports whether an offer waits for the end of a process.
func (b *Broker) Awaits(id ProcessID) bool { return b.process[id] != nil && b.process[id].fences > 0 }

func (e Die) apply(b *Broker) {
	if p := b.process[e.Process]; p != nil {
		p.dead = true
		b.settle(e.Process, "")
	}
}

func (e Lose) apply(b *Broker) {
	if p := b.process[e.Process]; p != nil && !p.dead {
		p.doubt = cmp.Or(e.Doubt, "its end cannot be known")
		b.settle(e.Process, p.doubt)
	}
}

// settle ends the wait for a process. With a doubt, it may still write.
func (b *Broker) settle(id ProcessID, doubt string) {
	for _, memory := range sorted(b.memory) {
		for _, o := range slices.Clone(b.memory[memory]) {
			i := slices.IndexFunc(o.writers, func(w writer) bool { return w.process == id })
			if i < 0 {
				continue
			}
			if doubt != "" {
				o.doubts(o.writers[i].peer, doubt)
			}
			b.pass(o, i)
			b.finish(o)
		}
	}
}

// pass ends the wait of an offer for its i-th writer.
func (b *Broker) pass(o *offer, i int) {
	id := o.writers[i].process
	o.writers = slices.Delete(o.writers, i, i+1)
	b.process[id].fences--
	b.unuse(id)
}

// doubts notes that a peer may still write an offer's memory.
func (o *offer) doubts(peer Peer, why string) {
	if o.doubt == "" && len(o.unsure.List) == 0 {
		o.doubt = why
	}
	o.unsure.add(peer)
}

// awaitWriter makes an offer wait for a session whose lease has ended, if that may still write.
func (b *Broker) awaitWriter(o *offer, s *session, e Gone) {
	want, p := o.terms.Fence, b.process[s.process]
	if want == NoFence || !e.Sent || o.gives(s.want) != gpumem.ReadWrite || want == Released && e.Released {
		return
	}
	switch {
	case p == nil:
		o.doubts(s.peer, s.doubt)
	case p.dead:
	case p.doubt != "":
		o.doubts(s.peer, p.doubt)
	case !slices.ContainsFunc(o.writers, func(w writer) bool { return w.process == s.process }):
		b.use(s.process)
		p.fences++
		o.writers = append(o.writers, writer{s.process, s.peer})
	}
}

func (e GiveUp) apply(b *Broker) {
	if o := b.offers[e.Offer]; o != nil {
		o.gaveUp = true
		b.finish(o)
	}
}

// finish ends an offer that is over, has no leases, and waits for no writer.
func (b *Broker) finish(o *offer) {
	if !o.over || len(o.live) > 0 || b.offers[o.id] != o {
		return
	}
	for o.gaveUp && len(o.writers) > 0 {
		o.doubts(o.writers[0].peer, "")
		b.pass(o, 0)
	}
	if len(o.writers) > 0 {
		return
	}
	delete(b.offers, o.id)
	id := o.terms.Memory
	if b.memory[id] = without(b.memory[id], o); len(b.memory[id]) == 0 {
		delete(b.memory, id)
	}
	b.do(Finished{o.id, o.open, o.unsure, o.doubt})
	if o.terms.Fence == NoFence {
		return
	}
	for _, waiting := range sorted(b.offers) {
		b.unblock(b.offers[waiting], o)
	}
}

func (e AwaitWriters) apply(b *Broker) {
	o := b.unpublished(e.Offer)
	if o == nil {
		return
	}
	o.awaits, o.earlier = false, nil
	for _, x := range b.memory[o.terms.Memory] {
		if x != o && b.isEarlier(x) {
			o.earlier = append(o.earlier, x)
		}
	}
	switch {
	case len(o.earlier) == 0:
		b.do(WritersDone{Offer: o.id})
	case e.Wait:
		o.awaits = true
	default:
		b.do(WritersDone{Offer: o.id, InUse: true, By: o.earlier[0].id})
	}
}

// isEarlier reports whether an offer is over, or is going to be because other memory has its
// name, so that the next offer of its memory has to wait for it.
func (b *Broker) isEarlier(x *offer) bool {
	if x.over {
		return true
	}
	n := b.names[x.name()]
	return x.published && (n == nil || n.current == nil || n.current.terms.Memory != x.terms.Memory)
}

// unblock notes that an offer has finished for which another may wait.
func (b *Broker) unblock(o, finished *offer) {
	if !o.awaits || !slices.Contains(o.earlier, finished) {
		return
	}
	o.earlier = without(o.earlier, finished)
	switch {
	case len(finished.unsure.List) > 0:
		o.awaits = false
		b.do(WritersDone{Offer: o.id, InUse: true, By: finished.id})
	case len(o.earlier) == 0:
		o.awaits = false
		b.do(WritersDone{Offer: o.id})
	}
}
