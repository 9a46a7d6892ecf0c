package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/moving"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/sock"
)

// The pool is memory of the host for parking. It is made when the keeper starts, beside all else, because it takes a
// quarter of a second a GiB, and it outlives the keeper in the fd store.

// Sizes of chunks: a pool has at most 128 of one size.
const (
	chunkUnit  = 2 << 20
	mostChunk  = 1 << 30
	fewChunks  = 64
	mostChunks = 128
)

// chunkFor returns the size of the chunks of a pool.
func chunkFor(size uint64) uint64 {
	up := func(n uint64) uint64 { return (n + chunkUnit - 1) / chunkUnit * chunkUnit }
	return max(min(up(size/fewChunks), mostChunk), up(size/mostChunks), chunkUnit)
}

// chunksFor returns how many chunks a pool has that is made anew.
func chunksFor(size uint64) int {
	chunk := chunkFor(size)
	return int((size + chunk - 1) / chunk)
}

// makePool waits for the mover of a keeper before this one, and then makes the pool as large as it is to be: chunks
// that are there stay, further ones are made, and free ones beyond that are dropped.
func (s *Server) makePool() {
	err := s.awaitMover()
	if err == nil {
		err = s.shrinkPool(s.opts.Pool)
	}
	if err == nil {
		err = s.growPool(s.opts.Pool)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.poolErr = err
	switch {
	case s.ctx.Err() != nil:
	case err != nil:
		s.log("making the pool for parking: %v", err)
	case s.opts.Pool > 0:
		s.log("the pool for parking has %d bytes", poolSize(s.state.Pool()))
	}
}

// moverWait is how long a keeper that starts lets requests wait for the end of its predecessor's mover.
const moverWait = 5 * time.Second

// killMover ends a mover by its pidfd; tests replace it.
var killMover = func(f *os.File) { _ = unix.PidfdSendSignal(int(f.Fd()), unix.SIGKILL, nil, 0) }

// awaitMover ends a mover whose keeper has died, and waits until it has ended. The server began with the turn to move
// versions, which awaitMover gives back then. After moverWait it gives it back too, and requests hear why nothing is
// moved; so they do after an error.
func (s *Server) awaitMover() error {
	p, err := s.oldMover()
	if err == nil && p != nil {
		ctx, cancel := context.WithTimeout(s.ctx, moverWait)
		err = p.Wait(ctx)
		cancel()
		if err != nil && s.ctx.Err() == nil {
			err = s.awaitStuck(p)
		}
		err = errors.Join(err, p.Close())
	}
	if err != nil {
		err = fmt.Errorf("it is not known whether a process still moves memory, and nothing is parked or unparked before the keeper starts again: %w", err)
		s.stuck = err
	}
	<-s.moves
	return err
}

// awaitStuck lets requests fail until a mover has ended that was killed and does not end.
func (s *Server) awaitStuck(p *sock.Process) error {
	s.stuck = errors.New("a process that moved memory for an earlier keeper was killed and does not end: until it has, nothing is parked or unparked")
	s.setPoolErr(s.stuck)
	s.log("%v", s.stuck)
	<-s.moves
	err := p.Wait(s.ctx)
	if _, ending := s.takeMoves(); ending != nil {
		s.moves <- struct{}{}
		return ending
	}
	if s.stuck = nil; err == nil {
		s.setPoolErr(nil)
		s.log("the process that moved memory for an earlier keeper has ended")
	}
	return err
}

// oldMover kills the mover that the store has, and returns it, or nil.
func (s *Server) oldMover() (*sock.Process, error) {
	var files []*os.File
	err := s.persist(func() (err error) {
		if _, ok := s.vault.files[moverID]; ok && files == nil {
			files, err = s.vault.fetch(moverID)
		}
		return err
	})
	if err != nil || files == nil {
		return nil, err
	}
	defer sock.DropFiles(files)
	p, err := sock.ProcessOf(files[0])
	if err == nil {
		killMover(files[0])
	}
	return p, err
}

func (s *Server) setPoolErr(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.poolErr = err
}

// persist makes a change, and tries again while the store is lost or silent. f may run again after it was done.
func (s *Server) persist(f func() error) error {
	for {
		err := s.change(f)
		switch state.CodeOf(err) {
		case api.StoreLost, api.StoreSilent, api.Unknown:
		default:
			return err
		}
		select {
		case <-s.ctx.Done():
			return errEnding
		case <-time.After(outagePause):
		}
	}
}

// shrinkPool drops free chunks while those that stay suffice.
func (s *Server) shrinkPool(size uint64) error {
	return s.persist(func() error {
		next := s.state.Clone()
		total, dropped := poolSize(next.Pool()), false
		free := next.FreeChunks()
		for i := len(free) - 1; i >= 0; i-- {
			if total-free[i].Size < size {
				continue
			}
			if err := next.DropChunk(free[i].ID); err != nil {
				return err
			}
			total, dropped = total-free[i].Size, true
		}
		if !dropped {
			return nil
		}
		return s.commit(next)
	})
}

func poolSize(chunks []state.Chunk) (sum uint64) {
	for _, c := range chunks {
		sum += c.Size
	}
	return sum
}

// growPool has a mover make what is missing.
func (s *Server) growPool(size uint64) error {
	s.mu.Lock()
	have := poolSize(s.state.Pool())
	s.mu.Unlock()
	if have >= size {
		return nil
	}
	mover, err := moving.Start(s.opts.Mover)
	if err != nil {
		return err
	}
	defer mover.Close()
	for chunk := chunkFor(size); have < size; have += chunk {
		if err := s.makeChunk(mover, chunk); err != nil {
			return err
		}
	}
	return nil
}

// makeChunk has a mover make one chunk, and keeps it.
func (s *Server) makeChunk(mover *moving.Mover, size uint64) error {
	ctx, cancel := context.WithTimeout(s.ctx, s.opts.Timeout+time.Duration(size/moveRate)*time.Second)
	defer cancel()
	d, files, err := mover.Do(ctx, moving.Job{Op: moving.OpChunk, Driver: s.opts.PoolDriver, Size: size})
	defer sock.DropFiles(files)
	if err == nil && len(files) != 1 {
		err = fmt.Errorf("%d descriptors came for one chunk", len(files))
	}
	if err != nil {
		return err
	}
	kind, err := parseKind(d.Driver)
	if err != nil {
		return err
	}
	testHookStep("chunk made")
	kept := false // used by one change after another
	err = s.persist(func() error {
		if kept {
			return nil
		}
		err := s.keepChunk(size, d.Node, kind, files)
		kept = err == nil
		return err
	})
	testHookStep("chunk kept")
	return err
}

// keepChunk is the change that adds a chunk to the pool.
func (s *Server) keepChunk(size uint64, node int, kind gpumem.Kind, files []*os.File) error {
	next := s.state.Clone()
	c := state.Chunk{ID: next.NewID(), Size: size, Node: node, Kind: kind}
	err := s.vault.hold(s.store, uint64(c.ID), files)
	if err == nil {
		err = next.AddChunk(c)
	}
	testHookStep("chunk held")
	if err == nil {
		err = s.commit(next)
	}
	if err != nil && s.ctx.Err() == nil {
		s.drop(uint64(c.ID))
	}
	return err
}

// whyNoRoom adds to an error of a pool without room why it is smaller than it was to be.
func (s *Server) whyNoRoom(err error) error {
	var no *state.Error
	if !errors.As(err, &no) || no.Code != state.NoRoom {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	more := *no
	switch have := poolSize(s.state.Pool()); {
	case s.poolErr != nil:
		more.Message += fmt.Sprintf("; the pool could not be made: %v", s.poolErr)
	case have < s.opts.Pool:
		more.Message += fmt.Sprintf("; the pool is being made, and has %d bytes of %d: try again", have, s.opts.Pool)
	}
	return &more
}

// pool describes the pool, or returns nil if there is none and none was wanted. It runs with mu held.
func (s *Server) pool() *api.Pool {
	p := &api.Pool{Wanted: s.opts.Pool, Bytes: poolSize(s.state.Pool()), Free: poolSize(s.state.FreeChunks())}
	if s.poolErr != nil {
		p.Error = s.poolErr.Error()
	}
	if p.Wanted == 0 && p.Bytes == 0 {
		return nil
	}
	return p
}
