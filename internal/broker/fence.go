package broker

import (
	"slices"

	"github.com/gpufd/gpufd/gpumem"
)

// Memory that a consumer could write is fenced when its work on it has ended: its connection is
// over, and it has said so or its process has died. Offers with a Fence wait for that when they
// are over, and so do later offers of the same memory.

// A process is one that has sessions or fences.
type process struct {
	users int // sessions and fences
	dead  bool
	lost  bool // its end cannot be known any more
}

// A fence is waited for.
type fence struct {
	session SessionID
	process ProcessID
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

func (e Die) apply(b *Broker) {
	if p := b.process[e.Process]; p != nil {
		p.dead = true
		b.settle(e.Process, false)
	}
}

func (e Lose) apply(b *Broker) {
	if p := b.process[e.Process]; p != nil && !p.dead {
		p.lost = true
		b.settle(e.Process, true)
	}
}

// settle ends the wait for a process: its sessions do not write any more, or are unsure.
func (b *Broker) settle(id ProcessID, unsure bool) {
	for _, memory := range sorted(b.memory) {
		for _, o := range slices.Clone(b.memory[memory]) {
			o.fences = slices.DeleteFunc(o.fences, func(f fence) bool {
				if f.process != id {
					return false
				}
				if unsure {
					o.unsure = append(o.unsure, f.session)
				}
				b.unuse(id)
				return true
			})
			b.finish(o)
		}
	}
}

// fence has an offer wait for a session whose lease has ended, if that may still write.
func (b *Broker) fence(o *offer, s *session, e Gone) {
	want := o.terms.Fence
	if want == NoFence || !e.Sent || o.gives(s.want) != gpumem.ReadWrite || want == Released && e.Released {
		return
	}
	p := b.process[s.process]
	switch {
	case p == nil || p.lost:
		o.unsure = append(o.unsure, s.id)
	case !p.dead:
		for _, f := range o.fences {
			if f.process == s.process {
				return // the process is waited for
			}
		}
		b.use(s.process)
		o.fences = append(o.fences, fence{s.id, s.process})
	}
}

func (e GiveUp) apply(b *Broker) {
	if o := b.offers[e.Offer]; o != nil {
		o.gaveUp = true
		b.finish(o)
	}
}

// finish ends an offer that is over, has no leases, and waits for no fence.
func (b *Broker) finish(o *offer) {
	if !o.over || len(o.live) > 0 || b.offers[o.id] != o {
		return
	}
	if o.gaveUp {
		for _, f := range o.fences {
			o.unsure = append(o.unsure, f.session)
			b.unuse(f.process)
		}
		o.fences = nil
	}
	if len(o.fences) > 0 {
		return
	}
	delete(b.offers, o.id)
	id := o.terms.Memory
	if b.memory[id] = without(b.memory[id], o); len(b.memory[id]) == 0 {
		delete(b.memory, id)
	}
	b.do(Finished{o.id, o.unsure})
	for _, waiting := range sorted(b.offers) {
		b.unblock(b.offers[waiting], o)
	}
}

func (e Begin) apply(b *Broker) {
	o := b.making(e.Offer)
	if o == nil {
		return
	}
	for _, x := range b.memory[o.terms.Memory] {
		if x != o && b.isEarlier(x) {
			o.blocks = append(o.blocks, x)
		}
	}
	switch {
	case len(o.blocks) == 0:
		b.do(Begun{Offer: o.id})
	case e.Wait:
		o.waits = true
	default:
		b.do(Begun{Offer: o.id, InUse: true, By: o.blocks[0].id})
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

// unblock notes that an offer waits for one less.
func (b *Broker) unblock(o, finished *offer) {
	if !o.waits || !slices.Contains(o.blocks, finished) {
		return
	}
	o.blocks = without(o.blocks, finished)
	switch {
	case len(finished.unsure) > 0:
		o.waits = false
		b.do(Begun{Offer: o.id, InUse: true, By: finished.id})
	case len(o.blocks) == 0:
		o.waits = false
		b.do(Begun{Offer: o.id})
	}
}
