package ring

import (
	"time"

	"github.com/gpufd/gpufd/internal/cli"
)

// hear notes that the member has said something.
func (m *member) hear(what kind) {
	m.heard = time.Now()
	if what != living {
		m.moved = m.heard
	}
}

// stallTime returns when to give up waiting for the members in waiting.
func (p *parent) stallTime(waiting map[*member]bool) time.Time {
	var moved time.Time
	for _, m := range p.members {
		if m.moved.After(moved) {
			moved = m.moved
		}
	}
	if heard := oldest(waiting).heard; heard.Before(moved) {
		return heard.Add(p.app.Timeout)
	}
	return moved.Add(p.app.Timeout)
}

// stalled returns the failure of the member that was silent for longest. A member that
// has missed some of its signs of life counts as silent, even for less than --timeout.
func (p *parent) stalled(waiting map[*member]bool, order message) error {
	m := oldest(waiting)
	if silent := time.Since(m.heard); silent > p.app.Timeout/2 {
		return &failure{id: m.id, err: cli.Codef(cli.ExitPeer, "process %d (pid %d) was silent for %s, at %s; wait longer with --timeout",
			m.id, m.pid(), silent.Round(time.Millisecond), order)}
	}
	return &failure{id: m.id, err: cli.Codef(cli.ExitPeer, "process %d (pid %d) lives but has not finished %s, and no process has done anything for %s: a kernel or a call of the driver may hang; wait longer with --timeout",
		m.id, m.pid(), order, p.app.Timeout)}
}

// oldest returns the member that was silent for longest.
func oldest(members map[*member]bool) (m *member) {
	for other := range members {
		if m == nil || other.heard.Before(m.heard) {
			m = other
		}
	}
	return m
}
