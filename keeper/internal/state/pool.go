package state

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/gpufd/gpufd/gpumem"
)

// A Chunk is memory of the host that the store has under ID. A part that is parked has whole chunks of its own.
type Chunk struct {
	ID   ID          `json:"id"`
	Size uint64      `json:"size"`
	Node int         `json:"node,omitzero"` // of NUMA
	Kind gpumem.Kind `json:"kind"`
}

// MaxPool bounds the chunks of the pool.
const MaxPool = 1024

// Pool returns all chunks, in the order in which they came.
func (s *State) Pool() []Chunk {
	if s == nil {
		return nil
	}
	return slices.Clone(s.pool)
}

// FreeChunks returns the chunks in which nothing is parked.
func (s *State) FreeChunks() []Chunk {
	taken := s.parked()
	return slices.DeleteFunc(s.Pool(), func(c Chunk) bool { return taken[c.ID] })
}

// parked returns the chunks of parts.
func (s *State) parked() map[ID]bool {
	taken := map[ID]bool{}
	for _, r := range s.all() {
		r.parts(func(p *Part) {
			for _, id := range p.Parked {
				taken[id] = true
			}
		})
	}
	return taken
}

// AddChunk adds a chunk to the pool. Its id is new ([State.NewID]), and the state takes over what the store has there.
//
// Errors: [BadRequest] for one that makes no sense, or one too many.
func (s *State) AddChunk(c Chunk) error {
	if s == nil {
		return errNil()
	}
	s.init()
	if err := c.check(); err != nil {
		return fail(BadRequest, "%v", err)
	}
	if c.ID > ID(s.ids.Load()) || s.named(c.ID) || len(s.pool) == MaxPool {
		return fail(BadRequest, "chunk %d was not made with NewID, is in use, or is one more than the %d of a pool", c.ID, MaxPool)
	}
	s.pool = append(slices.Clip(s.pool), c)
	return nil
}

func (c Chunk) check() error {
	if c.ID == 0 || c.Size == 0 || c.Size > MaxPart || c.Node < 0 || c.Kind != gpumem.CUDA && c.Kind != gpumem.Soft {
		return fmt.Errorf("chunk %d of %d bytes on node %d, of driver %d", c.ID, c.Size, c.Node, c.Kind)
	}
	return nil
}

// DropChunk takes a chunk out of the pool. It is among the next Dropped.
//
// Errors: [NotFound]; [Conflict] if something is parked there.
func (s *State) DropChunk(id ID) error {
	i := slices.IndexFunc(s.Pool(), func(c Chunk) bool { return c.ID == id })
	switch {
	case i < 0:
		return fail(NotFound, "the pool has no chunk %d", id)
	case s.parked()[id]:
		return fail(Conflict, "something is parked in chunk %d", id)
	}
	s.pool = slices.Delete(slices.Clone(s.pool), i, i+1)
	s.gone = append(s.gone, id)
	return nil
}

// isChunk reports whether an id is that of a chunk.
func (s *State) isChunk(id ID) bool {
	return s != nil && slices.ContainsFunc(s.pool, func(c Chunk) bool { return c.ID == id })
}

// sizeOf adds up chunks, each of them once. ok is false if one of them is not in the pool, or not of that driver.
func (s *State) sizeOf(chunks []ID, kind gpumem.Kind) (sum uint64, ok bool) {
	seen := map[ID]bool{}
	for _, id := range chunks {
		i := slices.IndexFunc(s.pool, func(c Chunk) bool { return c.ID == id && c.Kind == kind })
		if i < 0 || seen[id] {
			return 0, false
		}
		sum, seen[id] = plus(sum, s.pool[i].Size), true
	}
	return sum, true
}

// pool reads the chunks of a header.
func (d *decoder) pool(chunks []Chunk) error {
	if len(chunks) > MaxPool {
		return fmt.Errorf("%d chunks; %d are allowed", len(chunks), MaxPool)
	}
	for _, c := range chunks {
		if err := errors.Join(c.check(), d.own(uint64(c.ID))); err != nil {
			return err
		}
	}
	d.s.pool, d.taken = chunks, map[ID]bool{}
	return nil
}

// parked returns an error unless a part is parked in chunks that are large enough, and no other part is.
func (d *decoder) parked(p *Part) error {
	if len(p.Parked) == 0 {
		return nil
	}
	size, ok := d.s.sizeOf(p.Parked, p.Memory.Kind)
	if !ok || size < p.Bytes {
		return fmt.Errorf("part %d is parked in chunks %v, which are not in the pool or too small", p.Index, p.Parked)
	}
	before := len(d.taken)
	maps.Copy(d.taken, setOf(p.Parked))
	if len(d.taken) != before+len(p.Parked) {
		return fmt.Errorf("part %d is parked where another one is", p.Index)
	}
	return nil
}

func setOf(ids []ID) map[ID]bool {
	set := map[ID]bool{}
	for _, id := range ids {
		set[id] = true
	}
	return set
}
