package server

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/moving"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/sock"
)

// A versionKey identifies a version.
type versionKey struct {
	name    string
	version uint64
}

// mostMovings is how many requests to park or unpark a user may have at once, other than the keeper's own: one that is
// served, and one that waits for its turn. Else it could keep the readers of others waiting.
const mostMovings = 2

// move answers a request to park or unpark.
func (c *session) move(r protocol.Request, do func(name string, version uint64, who state.Who) (api.Moved, error)) (protocol.Reply, error) {
	s := c.server
	if c.who.UID != s.movings.ownerUID {
		if err := s.movings.take(c.who.UID, 1); err != nil {
			return protocol.Reply{}, err
		}
		defer s.movings.leave(c.who.UID, 1)
	}
	m, err := do(r.Name, r.Version, c.who)
	if err != nil {
		return protocol.Reply{}, err
	}
	return protocol.Reply{Moved: &m}, nil
}

// A move is a version that is parked or unparked.
type move struct {
	is    *state.Version
	parts []partMove
}

// A partMove is one part of that.
type partMove struct {
	index  int
	chunks []state.ID
	job    moving.Job
	files  []*os.File // that go along

	done   moving.Done
	answer []*os.File
}

// close closes all descriptors.
func (m *move) close() {
	for i := range m.parts {
		sock.DropFiles(m.parts[i].files)
		sock.DropFiles(m.parts[i].answer)
	}
}

// bytes adds up the parts.
func (m *move) bytes() (sum uint64) {
	for i := range m.parts {
		sum += m.parts[i].job.Memory.Size
	}
	return sum
}

// moved sums up what was done, since a time.
func (m *move) moved(since time.Time) api.Moved {
	sum := api.Moved{Version: m.is.N, Seconds: time.Since(since).Seconds()}
	for i := range m.parts {
		sum.Bytes += m.parts[i].done.Bytes
		sum.Copy += m.parts[i].done.Seconds
	}
	return sum
}

// takeMoves waits for the turn to move a version. The caller gives it back.
func (s *Server) takeMoves() (back func(), err error) {
	select {
	case s.moves <- struct{}{}:
		return func() { <-s.moves }, nil
	case <-s.ctx.Done():
		return nil, errEnding
	}
}

// planned makes a move in a change.
func (s *Server) planned(plan func() (*move, error)) (*move, error) {
	made := make(chan *move, 1) // buffered: the caller may have timed out
	err := s.change(func() error {
		m, err := plan()
		if err != nil && m != nil {
			m.close()
		}
		made <- m
		return err
	})
	if err != nil {
		return nil, err
	}
	return <-made, nil
}

// jobOf describes the job for a part.
func (s *Server) jobOf(op string, p *state.Part, chunks []state.ID) moving.Job {
	j := moving.Job{Op: op, Driver: p.Memory.Kind.String(), Device: p.Memory.Device.String(), Memory: protocol.Describe(p.Memory), Digest: p.Digest}
	sizes := map[state.ID]uint64{}
	for _, c := range s.state.Pool() {
		sizes[c.ID] = c.Size
	}
	for _, id := range chunks {
		j.Chunks = append(j.Chunks, sizes[id])
	}
	return j
}

// moveRate is what a mover does in a second at least.
const moveRate = 64 << 20

// carry has a mover do all jobs of a move. When it returns, the mover has ended, or no other one is started.
func (s *Server) carry(m *move) (err error) {
	if s.stuck != nil {
		return s.stuck
	}
	mover, err := moving.Start(s.opts.Mover)
	if err != nil {
		return err
	}
	defer func() {
		s.stuck = mover.Close()
		s.note(s.stuck)
	}()
	if err := s.change(func() error { return s.keepMover(mover) }); err != nil {
		return err
	}
	testHookStep("mover")
	ctx, cancel := context.WithTimeout(s.ctx, s.opts.Timeout+time.Duration(m.bytes()/moveRate)*time.Second)
	defer cancel()
	for i := range m.parts {
		p := &m.parts[i]
		if p.done, p.answer, err = mover.Do(ctx, p.job, p.files...); err != nil {
			return fmt.Errorf("part %d: %w", p.index, err)
		}
	}
	return nil
}

// keepMover gives the store the pidfd of a mover, in place of that of an earlier one, which has ended. It is part of a
// change.
func (s *Server) keepMover(m *moving.Mover) error {
	s.drop(moverID)
	return s.vault.hold(s.store, moverID, oneFile(m.Process()))
}

func (s *Server) announceMove(name string, m *move, kind string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.announce(api.Event{Name: name, Kind: kind, Version: m.is.N})
}

// add adds the job of a part to a move, with copies of the descriptors of ids. It is part of a change.
func (s *Server) add(m *move, op string, x state.Parking, ids ...state.ID) error {
	p := partMove{index: x.Part, chunks: x.Chunks, job: s.jobOf(op, &m.is.Parts[x.Part], x.Chunks)}
	for _, id := range ids {
		files, err := s.vault.fetch(uint64(id))
		if err != nil {
			sock.DropFiles(p.files)
			return err
		}
		p.files = append(p.files, files...)
	}
	m.parts = append(m.parts, p)
	return nil
}

// damage returns an error that names the parts that are damaged, or nil.
func (m *move) damage(v versionKey) error {
	for i := range m.parts {
		if p := &m.parts[i]; p.done.Damage != "" {
			return &state.Error{Code: state.IsDamaged, Message: fmt.Sprintf("part %d of %q, version %d, is damaged, and stays in memory of the host: %s", p.index, v.name, v.version, p.done.Damage)}
		}
	}
	return nil
}
