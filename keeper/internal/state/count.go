package state

import (
	"errors"
	"maps"
)

// The bounds of what a keeper counts.
const (
	maxCounts   = 256
	maxCountKey = 64 // bytes
)

// SetCounts stores the keeper's counts in the state, for the next keeper. It leaves out
// counts beyond 256, and those with a name of more than 64 bytes.
func (s *State) SetCounts(counts map[string]uint64) {
	if s == nil || maps.Equal(s.counts, counts) {
		return
	}
	kept := make(map[string]uint64, len(counts))
	for key, n := range counts {
		if len(kept) < maxCounts && checkCount(key) == nil {
			kept[key] = n
		}
	}
	s.counts = kept
}

// Counts returns what was counted, for the caller to keep.
func (s *State) Counts() map[string]uint64 {
	if s == nil {
		return nil
	}
	return maps.Clone(s.counts)
}

func checkCount(key string) error {
	if key == "" {
		return errors.New("a count without a name")
	}
	return checkText("count's name", key, maxCountKey)
}

func checkCounts(counts map[string]uint64) error {
	if len(counts) > maxCounts {
		return fail(BadRequest, "%d counts; %d are allowed", len(counts), maxCounts)
	}
	for key := range counts {
		if err := checkCount(key); err != nil {
			return err
		}
	}
	return nil
}
