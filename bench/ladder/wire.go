package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/gpufd/gpufd/bench/internal/rival"
)

// The messages are those of c/handoff.c, in the bytes of its structs.
const (
	offerSize  = 8 + 4 + 4 + 64
	errorSize  = 400
	stepSize   = 16 + 8 + 8
	mostSteps  = 12
	reportSize = errorSize + 16 + 8 + mostSteps*stepSize
)

// An offer goes with a descriptor, or is a nudge.
type offer struct {
	size   uint64
	chunks uint32
	fds    uint32
}

func (o offer) encode() []byte {
	b := make([]byte, offerSize)
	binary.LittleEndian.PutUint64(b, o.size)
	binary.LittleEndian.PutUint32(b[8:], o.chunks)
	binary.LittleEndian.PutUint32(b[12:], o.fds)
	return b
}

func decodeOffer(b []byte) (o offer, err error) {
	if len(b) != offerSize {
		return o, fmt.Errorf("an offer of %d bytes", len(b))
	}
	return offer{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:])}, nil
}

// text is a string with its terminating zero, of an error or of none.
func text(err error) []byte {
	if err == nil {
		return []byte{0}
	}
	s := err.Error()
	return append([]byte(s[:min(len(s), errorSize-1)]), 0)
}

// told is what the other side said that it failed with.
func told(b []byte) error {
	if s, _, _ := bytes.Cut(b, []byte{0}); len(s) > 0 {
		return fmt.Errorf("consumer: %s", s)
	}
	return nil
}

// A report is what the consumer read and how long it took.
type report struct {
	err   error
	salts [2]uint64
	steps []rival.Step // At is absolute
}

func (r report) encode() []byte {
	b := make([]byte, reportSize)
	copy(b, text(r.err))
	binary.LittleEndian.PutUint64(b[errorSize:], r.salts[0])
	binary.LittleEndian.PutUint64(b[errorSize+8:], r.salts[1])
	binary.LittleEndian.PutUint32(b[errorSize+16:], uint32(len(r.steps)))
	for i, s := range r.steps {
		at := b[errorSize+24+i*stepSize:]
		copy(at[:11], s.Name)
		binary.LittleEndian.PutUint64(at[16:], uint64(s.At))
		binary.LittleEndian.PutUint64(at[24:], uint64(s.NS))
	}
	return b
}

func decodeReport(b []byte) (r report, err error) {
	if len(b) != reportSize {
		return r, fmt.Errorf("a report of %d bytes", len(b))
	}
	n := binary.LittleEndian.Uint32(b[errorSize+16:])
	if n > mostSteps {
		return r, errors.New("a report of too many steps")
	}
	r.err = told(b[:errorSize])
	r.salts = [2]uint64{binary.LittleEndian.Uint64(b[errorSize:]), binary.LittleEndian.Uint64(b[errorSize+8:])}
	for i := range int(n) {
		at := b[errorSize+24+i*stepSize:]
		name, _, _ := bytes.Cut(at[:12], []byte{0})
		r.steps = append(r.steps, rival.Step{Side: "consumer", Name: string(name),
			At: int64(binary.LittleEndian.Uint64(at[16:])), NS: int64(binary.LittleEndian.Uint64(at[24:]))})
	}
	return r, nil
}
