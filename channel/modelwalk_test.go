package channel

import (
	"cmp"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
)

// states are those that were found, in that order, and how they follow each other.
type states[S comparable] struct {
	all   []S
	index map[uint64]int32 // by hash: the state itself is in all
	seed  maphash.Seed
	steps [][2]int32 // to, from
}

// add is the number of a state, which may be known.
func (s *states[S]) add(n S) (at int32, err error) {
	hash := maphash.Comparable(s.seed, n)
	at, known := s.index[hash]
	if known && s.all[at] != n {
		return 0, errors.New("two states have one hash: walk again")
	}
	if !known {
		at = int32(len(s.all))
		s.index[hash], s.all = at, append(s.all, n)
	}
	return at, nil
}

// walk visits every state that steps lead to from the first, and says what is wrong with one, or
// which cannot come to an end. next gives each state that one step leads to.
func walk[S comparable](first S, next func(s S, visit func(S)) error, isEnd func(*S) bool) (count int, err error) {
	s := &states[S]{index: map[uint64]int32{}, seed: maphash.MakeSeed()}
	if _, err := s.add(first); err != nil {
		return 0, err
	}
	var ends []int32
	for at := int32(0); int(at) < len(s.all); at++ {
		if isEnd(&s.all[at]) {
			ends = append(ends, at)
		}
		var failed error
		err := next(s.all[at], func(n S) {
			to, err := s.add(n)
			failed = cmp.Or(failed, err)
			s.steps = append(s.steps, [2]int32{to, at})
		})
		if err := cmp.Or(err, failed); err != nil {
			return len(s.all), err
		}
	}
	return len(s.all), s.stuck(ends)
}

// stuck finds a state from which no way leads to an end.
func (s *states[S]) stuck(ends []int32) error {
	s.index = nil // room for what follows
	slices.SortFunc(s.steps, func(a, b [2]int32) int { return cmp.Compare(a[0], b[0]) })
	good := make([]bool, len(s.all))
	for len(ends) > 0 {
		at := ends[len(ends)-1]
		ends = ends[:len(ends)-1]
		if good[at] {
			continue
		}
		good[at] = true
		i, _ := slices.BinarySearchFunc(s.steps, at, func(step [2]int32, at int32) int { return cmp.Compare(step[0], at) })
		for ; i < len(s.steps) && s.steps[i][0] == at; i++ {
			ends = append(ends, s.steps[i][1])
		}
	}
	if at := slices.Index(good, false); at >= 0 {
		return fmt.Errorf("there is no way on from %+v", s.all[at])
	}
	return nil
}
