package ring

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/gpufd/gpufd/sock"
)

// A kind is what a message is for.
type kind string

// The kinds of messages between the parent and its members.
const (
	begin      = kind("begin") // what to do, with a descriptor of each chunk
	fillStep   = kind("fill")  // everybody has filled, or mapped: fill the next
	checkChunk = kind("check") // everybody has filled for the last time
	lost       = kind("lost")  // another member is lost: end
	stop       = kind("stop")  // end

	ready   = kind("ready")   // all chunks are mapped
	filled  = kind("filled")  // the kernel is done
	working = kind("working") // a part of the order is done
	living  = kind("living")  // the process lives, whatever it does
	ended   = kind("ended")   // the last word
)

// A message is one record, as JSON: both ends are the same program.
type message struct {
	Kind  kind   `json:"kind"`
	Step  int    `json:"step,omitempty"`
	Peer  int    `json:"peer,omitempty"` // the member that is lost
	Setup *setup `json:"setup,omitempty"`
	End   *end   `json:"end,omitempty"`
}

// A setup is what a member needs to know.
type setup struct {
	Device string   `json:"device"` // UUID of its own
	Owners []string `json:"owners"` // UUIDs of the devices that the chunks are on
	Values []byte   `json:"values"` // of all members
	Steps  int      `json:"steps"`
	Size   uint64   `json:"size"`  // bytes to fill of a chunk
	Chunk  uint64   `json:"chunk"` // bytes of a chunk
	Module string   `json:"module,omitempty"`
}

// procs returns how many members there are.
func (s *setup) procs() int { return len(s.Owners) }

// An end is how a member's work ended.
type end struct {
	Code  int       `json:"code"` // exit code
	Error string    `json:"error,omitempty"`
	Wrong *mismatch `json:"wrong,omitempty"`
}

// encode makes the record of m.
func encode(m message) []byte {
	b, err := json.Marshal(m)
	if err != nil {
		panic(err) // nothing in it can fail
	}
	return b
}

// receive waits for a message. The caller closes the files.
func receive(ctx context.Context, c *sock.Conn) (m message, files []*os.File, err error) {
	rec, err := c.Receive(ctx)
	if err != nil {
		return m, nil, err
	}
	if err := json.Unmarshal(rec.Data, &m); err != nil {
		_ = rec.Close()
		return m, nil, fmt.Errorf("malformed message: %w", err)
	}
	return m, rec.Files, nil
}

// peerLost is the error of a ring that has lost the member of that number.
type peerLost int

// Error names the member.
func (id peerLost) Error() string { return fmt.Sprintf("peer %d lost", int(id)) }

// Is matches [sock.ErrPeerLost].
func (id peerLost) Is(target error) bool { return target == sock.ErrPeerLost }
