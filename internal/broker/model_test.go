package broker

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/wire"
)

// The model is everybody who brings events to a broker: makers of offers, consumers, an
// application that answers, and processes that die. It keeps its own account of what the broker
// has said, and knows the rules of doc.go in other words than the broker: after each step it looks
// whether an action was wrong, and whether one is missing. TestModelFindsPlantedFaults shows that
// it would notice.

// TestModel walks through random interleavings.
func TestModel(t *testing.T) {
	walks := 3000
	if testing.Short() {
		walks = 600
	}
	for seed := range uint64(walks) {
		if err := walk(seed, 120); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// walk takes steps, and then ends everything.
func walk(seed uint64, steps int) (err error) {
	r := rand.New(rand.NewPCG(seed, 38))
	w := &world{
		rand: r, broker: New(Options{Consults: r.IntN(2) == 0, Hides: r.IntN(2) == 0}), now: time.Unix(1000, 0),
		offers: map[OfferID]*worldOffer{}, sessions: map[SessionID]*worldSession{}, alive: map[ProcessID]bool{},
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v\n%s", p, w.log())
		}
	}()
	for range steps {
		w.step()
	}
	w.end()
	return nil
}

type world struct {
	rand     *rand.Rand
	broker   *Broker
	now      time.Time
	event    Event // the last
	id       uint64
	offers   map[OfferID]*worldOffer
	sessions map[SessionID]*worldSession
	alive    map[ProcessID]bool
	closed   bool
	trace    []string
}

type worldOffer struct {
	id                                              OfferID
	terms                                           Terms
	prepared, published, replaced, over, superseded bool
	begins, begun, gaveUp, finished, stands         bool
	blockers                                        []*worldOffer
	newer                                           uint64
	numbers, ended, given                           int // leases: the last number, those that count, those that go on or count
	timer                                           time.Time
	writers                                         map[ProcessID]bool // may still write
	doubtful                                        bool               // somebody may, of whom it cannot be known
	why                                             Reason             // it is over
}

type worldSession struct {
	id                             SessionID
	process                        ProcessID
	want                           wire.Attach
	offer                          *worldOffer // of the lease
	consults, allowed              OfferID
	waits, pending, served, mapped bool
	ended, refused, gone           bool
	heard                          time.Time // of progress
	told                           uint64    // the generation of newer memory that it was told of
	detached                       bool
	place                          *worldPlace // of the lease
}

// A worldPlace is a place of an offer. Sessions of one process that reattach share one.
type worldPlace struct{ of []*worldSession } // the last came last

// mayDetach reports whether a session may say that it has detached.
func (s *worldSession) mayDetach() bool {
	return s.mapped && !s.over() && s.want.Access == gpumem.ReadOnly && s.offer.terms.Record.CursorSize == 0
}

// placeOf returns the place that a session has already which wants an offer's memory again, or nil.
func (w *world) placeOf(s *worldSession, o *worldOffer) *worldPlace {
	for _, id := range sorted(w.sessions) {
		x := w.sessions[id]
		if s.want.Reattach != 0 && o.terms.Record.Memory.Generation == s.want.Reattach && s.process != 0 && x.process == s.process && x.offer == o && !x.over() && x.place.of[len(x.place.of)-1] == x {
			return x.place
		}
	}
	return nil
}

// hasAgain reports whether an offer has the memory that a session wants again.
func (w *world) hasAgain(o *worldOffer, s *worldSession) bool {
	return o.terms.Record.Memory.Generation == s.want.Reattach && o.terms.Record.Name == s.want.Name && !o.over && (o.published || o.prepared)
}

func (w *world) check(ok bool, format string, a ...any) {
	if !ok {
		panic(fmt.Sprintf(format, a...))
	}
}

func (w *world) log() (all string) {
	for _, line := range w.trace[max(0, len(w.trace)-80):] {
		all += line + "\n"
	}
	return all
}

func (w *world) bring(e Event) {
	w.event = e
	w.trace = append(w.trace, fmt.Sprintf("%T%+v", e, e))
	for _, a := range slices.Clone(w.broker.Step(w.now, e)) {
		w.trace = append(w.trace, fmt.Sprintf("    → %T%+v", a, a))
		w.see(a)
	}
	w.look()
}

// pick returns one of the values of a map that f admits, the same one for the same seed, or nil.
func pick[K ~uint64, V any](w *world, all map[K]*V, f func(*V) bool) *V {
	var keys []K
	for _, k := range sorted(all) {
		if f(all[k]) {
			keys = append(keys, k)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	return all[keys[w.rand.IntN(len(keys))]]
}

var names = []string{"a", "b"}

func (w *world) name() string { return names[w.rand.IntN(len(names))] }

// step brings one event that may come now.
func (w *world) step() {
	w.now = w.now.Add([]time.Duration{0, ProgressPause / 2, time.Second, 2 * time.Second}[w.rand.IntN(4)])
	making := func(o *worldOffer) bool { return !o.over && !o.published }
	switch w.rand.IntN(25) {
	case 0, 1:
		w.bring(Work{w.name(), uint64(w.rand.IntN(10)), 10})
	case 2, 3:
		w.claim()
	case 4:
		if o := pick(w, w.offers, func(o *worldOffer) bool { return making(o) && !o.begins && !o.prepared }); o != nil {
			w.begin(o, w.rand.IntN(3) > 0)
		}
	case 5:
		if o := pick(w, w.offers, func(o *worldOffer) bool { return making(o) && !o.prepared && !o.terms.Resumes && !o.begins }); o != nil {
			o.prepared = w.free(o)
			w.bring(Prepare{o.id})
		}
	case 6, 7, 8:
		if o := pick(w, w.offers, func(o *worldOffer) bool { return making(o) && !o.begins }); o != nil {
			w.publish(o)
		}
	case 9:
		if o := pick(w, w.offers, func(o *worldOffer) bool { return o.published && !o.over }); o != nil && w.rand.IntN(3) == 0 {
			w.id++
			o.newer, o.superseded = w.id, true
			w.bring(Supersede{o.id, o.newer})
		}
		if o := pick(w, w.offers, func(o *worldOffer) bool { return o.published && !o.over && (o.terms.Resumes || o.replaced) }); o != nil && w.rand.IntN(3) == 0 {
			o.stands, o.replaced = false, true
			w.bring(Retire{o.id})
		}
	case 10:
		if o := pick(w, w.offers, func(o *worldOffer) bool { return !o.over }); o != nil {
			w.bring(Withdraw{o.id, w.rand.IntN(2) == 0})
			w.check(o.over, "offer %d was withdrawn and is not over", o.id)
		}
	case 11:
		if o := pick(w, w.offers, func(o *worldOffer) bool { return !o.finished && o.terms.Fence != NoFence }); o != nil && w.rand.IntN(4) == 0 {
			o.gaveUp = true
			w.bring(GiveUp{o.id})
		}
	case 12:
		if o := pick(w, w.offers, func(o *worldOffer) bool { return !o.timer.IsZero() && !w.now.Before(o.timer) }); o != nil {
			o.timer = time.Time{}
			w.bring(Tick{o.id})
		}
	case 13, 14, 15:
		w.ask()
	case 16:
		if s := pick(w, w.sessions, func(s *worldSession) bool { return s.consults != 0 && !s.over() }); s != nil {
			w.answer(s)
		}
	case 17:
		if s := pick(w, w.sessions, func(s *worldSession) bool { return (s.pending || s.mapped) && !s.over() }); s != nil && w.rand.IntN(4) == 0 {
			w.bring(Map{s.id, s.offer.terms.Record.Memory.Generation})
			w.check(s.ended, "session %d says out of turn that it has mapped, and goes on", s.id)
			return
		}
		if s := pick(w, w.sessions, func(s *worldSession) bool { return s.served && !s.mapped && !s.over() }); s != nil {
			s.mapped = true
			w.bring(Map{s.id, s.offer.terms.Record.Memory.Generation})
		}
	case 18:
		if s := pick(w, w.sessions, func(s *worldSession) bool { return !s.over() }); s != nil {
			w.leave(s)
		}
	case 19, 20:
		if s := pick(w, w.sessions, func(s *worldSession) bool { return s.ended && !s.gone && s.offer != nil }); s != nil {
			w.goes(s)
		}
	case 21:
		w.die()
	case 22, 23:
		w.detach()
	case 24:
		if x := pick(w, w.sessions, func(s *worldSession) bool { return s.mapped && !s.gone && (s.detached || w.rand.IntN(8) == 0) }); x != nil {
			w.askAgain(x)
		}
	}
}

func (w *world) detach() {
	if s := pick(w, w.sessions, func(s *worldSession) bool { return s.offer != nil && !s.over() && !s.mayDetach() }); s != nil && w.rand.IntN(6) == 0 {
		w.bring(Detach{s.id})
		w.check(s.ended, "session %d detaches out of turn, and goes on", s.id)
		return
	}
	if s := pick(w, w.sessions, (*worldSession).mayDetach); s != nil {
		s.detached = true
		w.bring(Detach{s.id})
		w.check(!s.ended, "session %d detaches, and is ended", s.id)
	}
}

// askAgain lets somebody, mostly the same process, want the memory again that a session has detached, or has mapped.
func (w *world) askAgain(x *worldSession) {
	w.id++
	s := &worldSession{id: SessionID(w.id), process: x.process, want: x.want}
	s.want.Name, s.want.Resume, s.want.Reattach = x.offer.terms.Record.Name, 0, x.offer.terms.Record.Memory.Generation
	if w.rand.IntN(4) == 0 {
		s.process = ProcessID(w.rand.IntN(4))
	}
	if w.rand.IntN(4) == 0 {
		s.want.Reattach = uint64(1 + w.rand.IntN(int(w.id)))
	}
	if w.rand.IntN(6) == 0 {
		s.want.After = w.id
	}
	w.comes(s)
}

func (s *worldSession) wantsExactly() bool { return s.want.Reattach != 0 && s.want.After == 0 }

func (s *worldSession) over() bool { return s.ended || s.refused || s.gone }

// holder returns the offer that stands for a name, published before prepared, or nil.
func (w *world) holder(name string) *worldOffer {
	var prepared *worldOffer
	for _, id := range sorted(w.offers) {
		o := w.offers[id]
		if o.terms.Record.Name != name || o.over || o.terms.Resumes {
			continue
		}
		if o.published && !o.replaced {
			return o
		}
		if o.prepared && !o.published {
			prepared = o
		}
	}
	return prepared
}

// free reports whether an offer can have its name.
func (w *world) free(o *worldOffer) bool {
	for _, x := range w.offers {
		if x == o || x.over || x.terms.Resumes || x.terms.Record.Name != o.terms.Record.Name {
			continue
		}
		if x.published && !x.replaced && !o.terms.Replaces || x.prepared && !x.published {
			return false
		}
	}
	return true
}

func (w *world) claim() {
	w.id++
	o := &worldOffer{id: OfferID(w.id), writers: map[ProcessID]bool{}}
	t := &o.terms
	t.Record.Name, t.Record.Access = w.name(), gpumem.Access(1+w.rand.IntN(2)*2)
	t.Record.Memory.Kind = gpumem.CUDA
	t.Memory = MemoryID(1 + w.rand.IntN(2))
	t.Record.Memory.Generation = w.id
	t.Fence = Fence(w.rand.IntN(3))
	t.Replaces, t.Resumes = w.rand.IntN(2) == 0, w.rand.IntN(5) == 0
	o.stands = t.Resumes
	if !t.Resumes && w.rand.IntN(4) > 0 {
		t.Leases = w.rand.IntN(3)
		t.Idle, t.Grace = time.Duration(w.rand.IntN(2))*5*time.Second, time.Duration(w.rand.IntN(2))*3*time.Second
	}
	if w.rand.IntN(8) == 0 {
		t.Record.CursorSize = 64
	}
	free := t.Resumes || w.free(o)
	taken := false
	w.trace = append(w.trace, fmt.Sprintf("Claim %d %+v", o.id, *t))
	for _, a := range w.broker.Step(w.now, Claim{o.id, *t}) {
		_, taken = a.(Taken)
	}
	w.check(taken != free, "offer %d: taken %v, and its name is free %v", o.id, taken, free)
	if taken {
		return
	}
	w.offers[o.id] = o
	w.bring(Describe{o.id, t.Record, t.Memory})
}

// earlier returns the offers of the memory that are over or replaced by other memory, and have a fence.
func (w *world) earlier(o *worldOffer) (all []*worldOffer) {
	for _, id := range sorted(w.offers) {
		x := w.offers[id]
		if x == o || x.finished || x.terms.Memory != o.terms.Memory || x.terms.Fence == NoFence {
			continue
		}
		var holder *worldOffer
		if h := w.holder(x.terms.Record.Name); h != nil && h.published {
			holder = h
		}
		if x.over || x.published && (holder == nil || holder.terms.Memory != x.terms.Memory) {
			all = append(all, x)
		}
	}
	return all
}

func (w *world) begin(o *worldOffer, wait bool) {
	o.blockers, o.begun, o.begins = w.earlier(o), false, true
	w.bring(AwaitWriters{o.id, wait})
	if !wait || len(o.blockers) == 0 {
		w.check(o.begun, "AwaitWriters of offer %d was not answered at once", o.id)
	}
}

func (w *world) publish(o *worldOffer) {
	free := o.terms.Resumes || w.free(o)
	before, inOrder := w.holder(o.terms.Record.Name), w.rand.IntN(2) == 0
	switch {
	case !free:
	case o.terms.Resumes:
		o.published = true
	case inOrder && before != nil && before.published && before.id > o.id:
		o.replaced = true
		w.bring(Publish{o.id, inOrder})
		w.check(o.over && !before.replaced, "offer %d is late, and takes the name of %d", o.id, before.id)
		return
	default:
		o.published = true
		if before != nil && before != o {
			before.replaced = true
		}
	}
	w.bring(Publish{o.id, inOrder})
}

// makers counts the offers of a name that are being made.
func (w *world) makers(name string) (n int) {
	for _, o := range w.offers {
		if o.terms.Record.Name == name && !o.published && !o.over && !o.terms.Resumes {
			n++
		}
	}
	return n
}

func (w *world) ask() {
	w.id++
	s := &worldSession{id: SessionID(w.id), process: ProcessID(w.rand.IntN(4))}
	s.want = wire.Attach{Driver: gpumem.CUDA, Access: gpumem.Access(1 + w.rand.IntN(2)*2), Name: w.name()}
	switch w.rand.IntN(6) {
	case 0:
		s.want.Name = ""
	case 1:
		s.want.After = uint64(w.rand.IntN(int(w.id)) + 1)
	case 2:
		if o := pick(w, w.offers, func(*worldOffer) bool { return true }); o != nil {
			s.want.Resume, s.want.Name = o.terms.Record.Memory.Generation, o.terms.Record.Name
		}
	case 3:
		s.want.Capabilities = wire.TakesCursors
	}
	w.comes(s)
}

// comes lets a session ask.
func (w *world) comes(s *worldSession) {
	if p := s.process; p != 0 {
		if alive, known := w.alive[p]; known && !alive {
			s.process = 0 // numbers are not used again; here there are few
		} else {
			w.alive[p] = true
		}
	}
	w.sessions[s.id] = s
	doubt := ""
	if s.process == 0 {
		doubt = "unknown"
	}
	w.bring(Ask{s.id, Peer{PID: int32(s.process)}, s.process, doubt, s.want})
	w.check(s.waits || s.consults != 0 || s.offer != nil || s.over(), "session %d was not answered", s.id)
}

func (w *world) answer(s *worldSession) {
	e := Answer{Session: s.id, Offer: s.consults}
	switch w.rand.IntN(5) {
	case 0:
		e.Denied = true
	case 1:
		e.Hidden = s.want.Name == ""
	case 2:
		e.Offer++ // of an earlier question
		w.bring(e)
		return
	}
	s.consults = 0
	if !e.Denied && !e.Hidden {
		s.allowed = e.Offer
	}
	w.bring(e)
	w.check(!e.Denied && !e.Hidden || s.refused, "session %d was denied, and not refused", s.id)
	w.check(s.waits || s.consults != 0 || s.offer != nil || s.over(), "session %d was not answered", s.id)
}

func (w *world) leave(s *worldSession) {
	if s.offer != nil && w.rand.IntN(3) == 0 {
		w.bring(Revoke{s.id})
	} else {
		w.bring(Leave{s.id, Reason(int(Left) + w.rand.IntN(4))})
	}
	w.check(s.ended, "session %d left, and was not ended", s.id)
}

// goes ends the connection of a session that the broker has ended.
func (w *world) goes(s *worldSession) {
	o := s.offer
	e := Gone{Session: s.id, Sent: w.rand.IntN(4) > 0, Released: w.rand.IntN(2) == 0}
	s.gone = true
	s.place.of = without(s.place.of, s)
	switch {
	case len(s.place.of) > 0:
	case s.served:
		o.ended++
	default:
		o.given--
	}
	writes := e.Sent && s.want.Access == gpumem.ReadWrite && o.terms.Fence != NoFence && !(o.terms.Fence == Released && e.Released)
	switch {
	case !writes:
	case s.process == 0:
		o.doubtful = true
	case w.alive[s.process]:
		o.writers[s.process] = true
	}
	w.bring(e)
}

// die ends a process, or the watch of one, which ends its connections as well.
func (w *world) die() {
	p := ProcessID(1 + w.rand.IntN(3))
	if !w.alive[p] {
		return
	}
	lost := w.rand.IntN(4) == 0
	if lost {
		for _, s := range w.sessions {
			if s.process == p && !s.gone && !s.refused {
				return // it is watched as long as it has sessions
			}
		}
	}
	w.alive[p] = false
	for _, o := range w.offers {
		if o.writers[p] {
			delete(o.writers, p)
			o.doubtful = o.doubtful || lost
		}
	}
	if lost {
		w.bring(Lose{p, "lost"})
	} else {
		w.bring(Die{p})
	}
}

// see checks one action against what is known.
func (w *world) see(a Action) {
	if a.To() == 0 {
		w.seeOffer(a)
		return
	}
	s := w.sessions[a.To()]
	w.check(s != nil && !s.over(), "%T for a session that is over", a)
	switch a := a.(type) {
	case Consult:
		w.check(s.offer == nil && s.consults == 0, "session %d is asked about twice", s.id)
		s.consults, s.waits = a.Offer, false
	case Wait:
		w.check(s.offer == nil, "session %d has a lease and waits", s.id)
		s.waits = true
	case Progress:
		w.check(s.waits || s.pending, "session %d is told of progress and does not wait", s.id)
		w.check(w.now.Sub(s.heard) >= ProgressPause, "session %d is told of progress too often", s.id)
		s.heard = w.now
	case Grant:
		w.seeGrant(s, a)
	case Complete:
		w.check(s.pending && s.offer.published, "session %d is told of data that is not there", s.id)
		s.pending, s.served = false, true
	case Newer:
		w.check(s.offer != nil && a.Generation != 0 && a.Generation != s.offer.terms.Record.Memory.Generation, "session %d is told of %d", s.id, a.Generation)
		s.told = a.Generation
	case Confirm:
		w.check(s.mapped, "session %d is confirmed and has not mapped", s.id)
	case Refuse:
		w.check(s.offer == nil, "session %d has a lease and is refused", s.id)
		w.seeRefuse(s, a)
		s.refused = true
	case End:
		w.check(a.Served == s.served && a.Mapped == s.mapped, "session %d ends %+v", s.id, a)
		w.check(s.offer == nil || !s.offer.over || a.Reason == s.offer.why, "session %d ends %v, and its offer %v", s.id, a.Reason, s.offer)
		s.ended, s.consults, s.waits = true, 0, false
	}
}

// reasonOf returns how the leases of an offer have to end that is over by the event.
func (w *world) reasonOf(o *worldOffer) Reason {
	restarting := false
	switch e := w.event.(type) {
	case Withdraw:
		restarting = e.Restarting
	case Close:
		restarting = e.Restarting
	}
	switch {
	case restarting:
		return Restarting
	case o.replaced:
		return Superseded
	}
	return Withdrawn
}

func (w *world) seeGrant(s *worldSession, a Grant) {
	o := w.offers[a.Offer]
	w.check(s.offer == nil && o != nil && !o.over, "session %d is granted %d", s.id, a.Offer)
	r := o.terms.Record
	w.check(!w.broker.opts.Consults || s.allowed == o.id, "session %d is granted %d without the application", s.id, o.id)
	w.check(s.want.Name == "" || s.want.Name == r.Name, "session %d is granted another name", s.id)
	w.check(s.want.Access <= r.Access, "session %d is granted more access than is offered", s.id)
	w.check(s.want.Resume == 0 || s.want.Resume == r.Memory.Generation, "session %d resumes other memory", s.id)
	w.check(s.want.After == 0 || s.want.Reattach != 0 || s.want.After < r.Memory.Generation, "session %d is granted memory that it knows", s.id)
	w.check(r.CursorSize == 0 || s.want.Capabilities != 0, "session %d is granted what it cannot take", s.id)
	w.check(a.Pending == !o.published, "session %d: pending %v", s.id, a.Pending)
	w.check(a.Number == o.numbers+1, "lease number %d of offer %d after %d", a.Number, o.id, o.numbers)
	w.check(!s.wantsExactly() || w.hasAgain(o, s), "session %d reattaches other memory", s.id)
	o.numbers++
	if s.place = w.placeOf(s, o); s.place == nil {
		s.place = &worldPlace{}
		o.given++
	}
	s.place.of = append(s.place.of, s)
	w.check(o.terms.Leases == 0 || o.given <= o.terms.Leases, "offer %d has more leases than it may", o.id)
	switch {
	case s.wantsExactly():
	case s.want.Reattach != 0 && w.hasAgain(o, s) && !o.replaced && !o.superseded:
	case o.terms.Resumes:
		w.check(s.want.Resume != 0, "session %d is granted an offer for those that resume", s.id)
	default:
		w.check(w.holder(r.Name) == o, "session %d is granted %d, which does not stand for its name", s.id, o.id)
	}
	s.offer, s.waits, s.pending, s.served = o, false, a.Pending, !a.Pending
}

// seeRefuse checks that a session is not refused for a name that stands for something.
func (w *world) seeRefuse(s *worldSession, a Refuse) {
	if s.wantsExactly() {
		w.seeRefuseAgain(s, a)
		return
	}
	if o := w.holder(s.want.Name); s.want.Reattach == 0 && a.Because.Code == wire.RefusedBusy && s.want.Name != "" {
		w.check(o.terms.Leases > 0 && o.given >= o.terms.Leases, "session %d is refused, and offer %d has a place", s.id, o.id)
	}
	if a.Because.Code != wire.RefusedName || w.closed || s.want.Name == "" {
		return
	}
	w.check(w.holder(s.want.Name) == nil && w.makers(s.want.Name) == 0, "session %d is refused, and there is or will be an offer", s.id)
}

// seeRefuseAgain checks that a session which reattaches is not refused memory that is there, and that it learns only of an
// offer that it may know of.
func (w *world) seeRefuseAgain(s *worldSession, a Refuse) {
	w.check(a.Because.Code != wire.RefusedStale || !w.broker.opts.Consults || s.allowed != 0, "session %d learns without the application that there is another offer", s.id)
	for _, o := range w.offers {
		if !w.hasAgain(o, s) {
			continue
		}
		w.check(a.Because.Code != wire.RefusedStale && a.Because.Code != wire.RefusedName || w.closed, "session %d is refused memory that offer %d has", s.id, o.id)
		w.check(a.Because.Code != wire.RefusedBusy || w.placeOf(s, o) == nil && o.given >= o.terms.Leases, "session %d is refused, and offer %d has a place", s.id, o.id)
	}
}

func (w *world) seeOffer(a Action) {
	switch a := a.(type) {
	case Taken:
		o := w.offers[a.Offer]
		w.check(o == nil || !o.published && !w.free(o), "offer %d has its name, and hears that it is taken", a.Offer)
	case WritersDone:
		o := w.offers[a.Offer]
		w.check(o.begins && !o.begun, "offer %d begins twice", o.id)
		o.begun, o.begins = true, false
		if !a.InUse {
			for _, x := range o.blockers {
				w.check(x.finished && !x.doubtful, "offer %d begins, and %d may be written", o.id, x.id)
			}
		} else {
			w.check(slices.ContainsFunc(o.blockers, func(x *worldOffer) bool { return x.id == a.By }), "offer %d waits for %d", o.id, a.By)
		}
	case Replaced:
		w.check(w.offers[a.Offer].replaced || w.offers[a.Offer].superseded, "offer %d is replaced by nothing", a.Offer)
		w.offers[a.Offer].replaced = true
	case Timer:
		w.offers[a.Offer].timer = a.At
	case Over:
		o := w.offers[a.Offer]
		w.check(!o.over, "offer %d is over twice", o.id)
		o.over, o.begins, o.why = true, false, w.reasonOf(o)
		w.check(a.Reason == o.why, "offer %d ends %v, and not %v", o.id, a.Reason, o.why)
		if _, gone := w.event.(Gone); gone {
			w.check(o.replaced && o.given == o.ended || o.terms.Leases > 0 && o.ended >= o.terms.Leases, "offer %d ends with %d of %d leases", o.id, o.ended, o.given)
		}
	case Finished:
		o := w.offers[a.Offer]
		w.check(o.over && !o.finished, "offer %d is finished and not over, or twice", o.id)
		for _, s := range w.sessions {
			w.check(s.offer != o || s.gone, "offer %d is finished, and session %d goes on", o.id, s.id)
		}
		w.check(len(o.writers) == 0 || o.gaveUp, "offer %d is finished, and %v may write", o.id, o.writers)
		o.doubtful = o.doubtful || len(o.writers) > 0
		w.check((len(a.Unsure.List) > 0) == o.doubtful, "offer %d is finished, unsure %v, doubtful %v", o.id, a.Unsure, o.doubtful)
		o.finished = true
	}
}

// look checks that nothing is missing.
func (w *world) look() {
	for _, id := range sorted(w.sessions) {
		s := w.sessions[id]
		switch {
		case s.over():
		case s.waits:
			w.lookWaiting(s)
		case s.pending:
			w.check(!s.offer.published, "session %d was not told that its data is there", s.id)
		}
		if o := s.offer; o != nil && !s.over() {
			w.check(!o.over, "session %d goes on, and offer %d is over", s.id, o.id)
			if h := w.holder(o.terms.Record.Name); h != nil && h.published && h != o && o.published {
				w.check(s.told != 0, "session %d was not told of %d", s.id, h.id)
			}
		}
	}
	for _, id := range sorted(w.offers) {
		o := w.offers[id]
		active := o.given - o.ended
		switch {
		case o.over && !o.finished:
			w.check(active > 0 || len(o.writers) > 0 && !o.gaveUp, "offer %d is over, and does not finish", o.id)
		case o.over || o.stands || !o.published:
		case o.terms.Leases > 0:
			w.check(o.ended < o.terms.Leases, "offer %d has had all its leases, and goes on", o.id)
			fallthrough
		default:
			w.check(!o.replaced || active > 0, "offer %d is replaced, has no leases, and goes on", o.id)
			w.check(o.terms.Idle == 0 || active > 0 || !o.timer.IsZero(), "offer %d is idle without a timer", o.id)
			w.check(o.terms.Grace == 0 || !o.replaced || !o.timer.IsZero(), "offer %d is replaced without a timer", o.id)
		}
		if o.begins {
			w.check(slices.ContainsFunc(o.blockers, func(x *worldOffer) bool { return !x.finished }), "offer %d waits for nothing", o.id)
		}
	}
}

// lookWaiting checks that a session has something to wait for, and that this is not there.
func (w *world) lookWaiting(s *worldSession) {
	w.check(!s.wantsExactly(), "session %d waits to reattach", s.id)
	name := s.want.Name
	if name == "" {
		return // it means the only one of when it came
	}
	o := w.holder(name)
	if o == nil {
		w.check(w.makers(name) > 0, "session %d waits for nothing", s.id)
		return
	}
	w.check(s.want.Reattach == 0 && s.want.After >= o.terms.Record.Memory.Generation, "session %d waits, and offer %d is there", s.id, o.id)
}

// end ends everything, and checks that nothing is left.
func (w *world) end() {
	w.closed = true
	w.bring(Close{w.rand.IntN(2) == 0})
	for _, o := range w.offers {
		w.check(o.over, "offer %d goes on after Close", o.id)
	}
	for _, id := range sorted(w.sessions) {
		s := w.sessions[id]
		w.check(s.over(), "session %d goes on after Close", s.id)
		if s.offer != nil && !s.gone {
			w.goes(s)
		}
	}
	for p := ProcessID(1); p <= 3; p++ {
		for w.alive[p] {
			w.die()
		}
	}
	for _, o := range w.offers {
		w.check(o.finished, "offer %d does not finish", o.id)
	}
	b := w.broker
	w.check(len(b.names)+len(b.offers)+len(b.sessions)+len(b.process)+len(b.memory) == 0, "something is left: %+v", b)
}

// An event of what has ended, or never was, does nothing.
func TestEventsOfNothing(t *testing.T) {
	b := New(Options{})
	for _, e := range []Event{
		Describe{Offer: 1}, AwaitWriters{Offer: 1}, Supersede{1, 2}, Retire{1}, Withdraw{1, false}, GiveUp{1}, Tick{1}, Answer{Session: 1}, Map{1, 2}, Detach{1}, Revoke{1}, Leave{1, Lost}, Gone{Session: 1}, Die{1}, Lose{1, "x"}, Work{"a", 1, 2},
	} {
		require.Empty(t, b.Step(time.Now(), e), "%T", e)
	}
	require.Equal(t, []Action{Taken{Offer: 1}}, b.Step(time.Now(), Publish{1, false}))
}
