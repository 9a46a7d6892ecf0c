package soft

import (
	"sync"

	"github.com/gpufd/gpufd/cu/soft/internal/ptx"
)

// A moduleCache keeps the modules that were read last, as a driver caches what it has compiled:
// programs load the same text again and again. A module does not change once it is read.
type moduleCache struct {
	mu   sync.Mutex
	read []readModule // the one that was asked for last is the last
}

type readModule struct {
	text        string
	unoptimised bool
	code        *ptx.Module
}

// The bounds of a module cache: modules, and bytes of the text of each.
const (
	cachedModules = 8
	cachedText    = 1 << 20
)

// parse reads a module, or takes it from the cache.
func (s *moduleCache) parse(text string, unoptimised bool) (*ptx.Module, error) {
	if code := s.find(text, unoptimised); code != nil {
		return code, nil
	}
	parse := ptx.Parse
	if unoptimised {
		parse = ptx.ParseUnoptimised
	}
	code, err := parse(text)
	if err == nil && len(text) <= cachedText {
		s.put(readModule{text, unoptimised, code})
	}
	return code, err
}

func (s *moduleCache) find(text string, unoptimised bool) *ptx.Module {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, v := range s.read {
		if v.text == text && v.unoptimised == unoptimised {
			s.read = append(append(s.read[:i], s.read[i+1:]...), v)
			return v.code
		}
	}
	return nil
}

func (s *moduleCache) put(v readModule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.read = append(s.read, v); len(s.read) > cachedModules {
		s.read = append([]readModule(nil), s.read[1:]...)
	}
}
