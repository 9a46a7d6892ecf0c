package main

import (
	"errors"
	"fmt"
	"strconv"
)

// values returns the values that the processes fill with: all different, and none 0, which
// new memory holds; or those of the sample.
func values(procs int, salt uint32, compat bool) []byte {
	v := make([]byte, procs)
	for id := range v {
		v[id] = byte(id)
		if !compat {
			v[id] = byte(1 + (uint64(salt)+uint64(id))%255)
		}
	}
	return v
}

// chunkOf returns the chunk that process id fills in a step.
func chunkOf(id, step, procs int) int { return (step + id) % procs }

// fillerOf returns the process that fills a chunk in a step.
func fillerOf(chunk, step, procs int) int { return ((chunk-step)%procs + procs) % procs }

// A placeFlag says where the chunks are.
type placeFlag string

// All chunks on the first device, or each on its process'.
const (
	placeFirst  = placeFlag("first")
	placeSpread = placeFlag("spread")
)

// Set reads first or spread.
func (f *placeFlag) Set(s string) error {
	if p := placeFlag(s); p == placeFirst || p == placeSpread {
		*f = p
		return nil
	}
	return errors.New("want first or spread")
}

// String returns first or spread.
func (f *placeFlag) String() string { return string(*f) }

// A saltFlag is a number of 32 bits, or none.
type saltFlag struct {
	value uint32
	given bool
}

// Set reads a number, decimal or 0x.
func (f *saltFlag) Set(s string) error {
	v, err := strconv.ParseUint(s, 0, 32)
	if err != nil {
		return errors.New("want a number of 32 bits")
	}
	*f = saltFlag{uint32(v), true}
	return nil
}

// String returns the number, or nothing.
func (f *saltFlag) String() string {
	if !f.given {
		return ""
	}
	return strconv.FormatUint(uint64(f.value), 10)
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}
