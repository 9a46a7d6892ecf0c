package fdstore

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"
)

const (
	magic      = "GFDS"
	version    = 1
	headerSize = 32

	// answerBit marks the operation of an answer.
	answerBit = 1 << 15

	// maxIDs is how many ids a DROP and how many entries a LIST has at most.
	maxIDs    = 4096
	entrySize = 12

	statusSize = 6 * 8
)

type operation uint16

const (
	opStatus operation = iota + 1
	opHold
	opSwap
	opDrop
	opList
	opFetch
	opManifest
	opExit
)

// header begins each record. The package documentation explains its fields.
type header struct {
	op    operation
	seq   uint32
	code  code
	count uint32
	from  uint32
	id    uint64
}

// append appends the 32 bytes of h to b.
func (h header) append(b []byte) []byte {
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint16(b, version)
	b = binary.LittleEndian.AppendUint16(b, uint16(h.op))
	b = binary.LittleEndian.AppendUint32(b, h.seq)
	b = binary.LittleEndian.AppendUint32(b, uint32(h.code))
	b = binary.LittleEndian.AppendUint32(b, h.count)
	b = binary.LittleEndian.AppendUint32(b, h.from)
	return binary.LittleEndian.AppendUint64(b, h.id)
}

// parse splits a record into its header and what follows. On an error the header has
// the operation and the number as far as they can be told.
func parse(record []byte) (h header, body []byte, err error) {
	if len(record) < headerSize {
		return h, nil, fmt.Errorf("%w: %d bytes, a header has %d", ErrMalformed, len(record), headerSize)
	}
	if !bytes.HasPrefix(record, []byte(magic)) {
		return h, nil, fmt.Errorf("%w: it begins with %q, not with %q", ErrMalformed, record[:4], magic)
	}
	h = header{
		op:    operation(binary.LittleEndian.Uint16(record[6:])),
		seq:   binary.LittleEndian.Uint32(record[8:]),
		code:  code(binary.LittleEndian.Uint32(record[12:])),
		count: binary.LittleEndian.Uint32(record[16:]),
		from:  binary.LittleEndian.Uint32(record[20:]),
		id:    binary.LittleEndian.Uint64(record[24:]),
	}
	if v := binary.LittleEndian.Uint16(record[4:]); v != version {
		return h, nil, fmt.Errorf("%w: version %d; this is version %d", ErrMalformed, v, version)
	}
	return h, record[headerSize:], nil
}

// appendIDs appends the body of a DROP.
func appendIDs(b []byte, ids []uint64) []byte {
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint64(b, id)
	}
	return b
}

func parseIDs(h header, body []byte) ([]uint64, error) {
	if h.count > maxIDs || len(body) != int(h.count)*8 {
		return nil, fmt.Errorf("%w: %d ids in %d bytes", ErrMalformed, h.count, len(body))
	}
	ids := make([]uint64, h.count)
	for i := range ids {
		ids[i] = binary.LittleEndian.Uint64(body[i*8:])
	}
	return ids, nil
}

// appendEntry appends one set to the body of LIST's answer.
func appendEntry(b []byte, id uint64, n int) []byte {
	b = binary.LittleEndian.AppendUint64(b, id)
	return binary.LittleEndian.AppendUint32(b, uint32(n))
}

// parseEntries adds the body of LIST's answer to sets, and returns the last id.
func parseEntries(sets map[uint64]int, body []byte) (last uint64, err error) {
	if len(body)%entrySize != 0 {
		return 0, fmt.Errorf("%w: a list of %d bytes", ErrMalformed, len(body))
	}
	for ; len(body) > 0; body = body[entrySize:] {
		last = binary.LittleEndian.Uint64(body)
		sets[last] = int(binary.LittleEndian.Uint32(body[8:]))
	}
	return last, nil
}

// Status describes a store.
type Status struct {
	PID         int       // of the store
	Sets        int       // complete ones
	Descriptors int       // in them
	Room        int       // how many more it can hold (RLIMIT_NOFILE)
	Manifest    int64     // bytes; -1 if there is none
	Since       time.Time // when it began
	Identity    uint64    // a random number of the store's; 0: the store is too old to have one
}

// Same reports whether two statuses are of one store. Its pid does not tell: in containers all
// stores have the same.
func (s Status) Same(as Status) bool {
	if s.Identity != 0 && as.Identity != 0 {
		return s.Identity == as.Identity
	}
	return s.Identity == as.Identity && s.PID == as.PID && s.Since.Equal(as.Since)
}

func (s Status) append(b []byte) []byte {
	for _, n := range []int64{int64(s.PID), int64(s.Sets), int64(s.Descriptors), int64(s.Room), s.Manifest, s.Since.UnixNano()} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	return b
}

func parseStatus(body []byte) (Status, error) {
	if len(body) != statusSize {
		return Status{}, fmt.Errorf("%w: a status of %d bytes", ErrMalformed, len(body))
	}
	at := func(i int) int64 { return int64(binary.LittleEndian.Uint64(body[i*8:])) }
	return Status{PID: int(at(0)), Sets: int(at(1)), Descriptors: int(at(2)), Room: int(at(3)),
		Manifest: at(4), Since: time.Unix(0, at(5))}, nil
}
