package cu

import "sync/atomic"

// A gate counts the calls in flight on a handle and lets it be closed once,
// after the last of them. The zero gate is open.
type gate struct {
	state atomic.Int64 // calls in flight, less closed once Close has begun
	idle  atomic.Pointer[chan struct{}]
}

const closed = 1 << 40

// enter begins a call. If it is false, close has begun and the call must not be
// made.
func (g *gate) enter() bool { return g.state.Add(1) > 0 || g.refuse() }

// again begins a call during another one. A close that has begun waits for it, too.
func (g *gate) again() { g.state.Add(1) }

// refuse undoes enter.
func (g *gate) refuse() bool {
	g.leave()
	return false
}

// leave ends a call that enter began.
func (g *gate) leave() {
	if g.state.Add(-1) == -closed {
		g.wake()
	}
}

// wake tells close that the last call has ended.
func (g *gate) wake() {
	if idle := g.idle.Load(); idle != nil {
		select {
		case *idle <- struct{}{}:
		default: // awake already
		}
	}
}

// close shuts the gate and waits for the calls in flight. If another goroutine
// has closed it, close returns false at once.
func (g *gate) close() bool {
	if g.idle.Load() != nil {
		return false
	}
	idle := make(chan struct{}, 1)
	if !g.idle.CompareAndSwap(nil, &idle) {
		return false
	}
	if g.state.Add(-closed) != -closed {
		<-idle
	}
	return true
}

// isClosed reports whether close has begun.
func (g *gate) isClosed() bool { return g.state.Load() < 0 }

// openAt returns p, or 0 if the gate of the memory there is closed.
func (g *gate) openAt(p DevicePtr) DevicePtr {
	if g.isClosed() {
		return 0
	}
	return p
}
