package state

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/gpufd/gpufd/gpumem"
)

// A manifest is lines of text. The first says what it is, the last is a checksum of all
// before it. Each line between is a word and a JSON object of bounded size:
//
//	gpufd-keeper-manifest 1
//	state {"last_id":17,…}
//	outcome {"ticket":"t9",…}
//	name {"name":"weights","last":2}
//	current {"n":2,…}
//	part {"index":0,…}
//	retired {"n":1,…}
//	part {"index":0,…}
//	transaction {"parts":1,…}
//	delivered {"index":0,…}
//	booking {"ticket":"t16",…}
//	holder {"id":15,…}
//	crc32c 1f2e3d4c
//
// The lines that belong to a line follow it. There is one way to write a state, and Decode
// takes no other. A new member is left out when it is zero, so that older manifests are still
// what would be written now; any other change needs another number in the first line.
const (
	firstLine = "gpufd-keeper-manifest 1\n"
	lastWord  = "crc32c "
)

// The words.
const (
	wordState       = "state"
	wordOutcome     = "outcome"
	wordName        = "name"
	wordCurrent     = "current"
	wordRetired     = "retired"
	wordPart        = "part"
	wordTransaction = "transaction"
	wordDelivered   = "delivered"
	wordBooking     = "booking"
	wordHolder      = "holder"
)

// A header is the line of the whole state.
type header struct {
	Last     ID                `json:"last_id"`
	Draining []gpumem.UUID     `json:"draining,omitempty"`
	Pool     []Chunk           `json:"pool,omitempty"`
	Counts   map[string]uint64 `json:"counts,omitempty"`
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Encode returns the manifest: the same for the same state, byte for byte. Records that
// have not changed are copied.
func (s *State) Encode() []byte {
	if s == nil {
		return New(Policy{}).Encode()
	}
	s.init()
	text := make([]byte, 0, s.size+256+64*(len(s.draining)+len(s.pool)+len(s.counts)+len(s.outcomes)))
	text = append(text, firstLine...)
	text = appendLine(text, wordState, header{ID(s.ids.Load()), s.draining, s.pool, s.counts})
	for i := range s.outcomes {
		text = append(text, s.outcomes[i].line...)
	}
	for _, r := range s.records {
		text = append(text, r.text...)
	}
	return append(text, lastLine(text)...)
}

// lastLine returns the checksum of what comes before it.
func lastLine(text []byte) string {
	return fmt.Sprintf("%s%08x\n", lastWord, crc32.Checksum(text, castagnoli))
}

func appendLine(text []byte, word string, v any) []byte {
	object, err := json.Marshal(v)
	if err != nil {
		panic("state: " + err.Error()) // the checks rule it out
	}
	text = append(append(text, word...), ' ')
	return append(append(text, object...), '\n')
}

// encode sets the record's text in a manifest, and its charges.
func (r *record) encode() {
	if !r.idle() {
		r.Removed = time.Time{}
	}
	r.charges = charges{}
	text := appendLine(make([]byte, 0, 1024+320*len(r.Holders)), wordName, r)
	if uid, ok := r.user(); ok {
		r.charges.room(uid, len(text))
	}
	for _, v := range r.Retired {
		text = v.append(text, wordRetired, r.charges)
	}
	if r.Current != nil {
		text = r.Current.append(text, wordCurrent, r.charges)
	}
	for _, t := range r.Pending {
		text = t.append(text, r.charges)
	}
	for i := range r.Holders {
		h, from := &r.Holders[i], len(text)
		text = h.append(text)
		r.charges.room(h.Holder.UID, len(text)-from)
		r.charges.process(h.Holder.UID, h.Holder.Pidfd)
	}
	r.text = bytes.Clone(text)
}

func (v *Version) append(text []byte, word string, of charges) []byte {
	from := len(text)
	text = appendLine(text, word, v)
	of.room(v.Parts[0].Writer.UID, len(text)-from)
	return appendParts(text, wordPart, v.Parts, v.Labels, of)
}

// appendParts appends the parts of a version with these labels, which readers are told with each
// part.
func appendParts(text []byte, word string, parts []Part, labels map[string]string, of charges) []byte {
	told := uint64(0)
	for k, v := range labels {
		told += uint64(len(k) + len(v))
	}
	for i := range parts {
		from := len(text)
		text = appendLine(text, word, &parts[i])
		of.part(&parts[i], len(text)-from)
		of.add(parts[i].Writer.UID, Charge{Tables: told})
	}
	return text
}

func (t *transaction) append(text []byte, of charges) []byte {
	from := len(text)
	text = appendLine(text, wordTransaction, t)
	of.room(t.user(), len(text)-from)
	text = appendParts(text, wordDelivered, t.Delivered, t.Labels, of)
	for i := range t.Bookings {
		b, from := &t.Bookings[i], len(text)
		text = appendLine(text, wordBooking, b)
		of.room(b.By.UID, len(text)-from)
		of.process(b.By.UID, b.By.Pidfd)
	}
	return text
}
