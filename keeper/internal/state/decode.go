package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// maxManifest bounds what Decode reads, in bytes: what Encode writes is below.
const maxManifest = 4 * maxState

// Decode reads a manifest that Encode wrote, for a keeper with that policy, which need
// not be the one that was in force then. It allocates a small multiple of the manifest.
//
// Decode returns an error that says where a manifest is damaged, was changed by hand, or
// has a format that this keeper does not know. Leave such a manifest as it is.
func Decode(manifest []byte, p Policy) (*State, error) {
	d := decoder{s: New(p), seen: map[uint64]bool{}, pidfds: map[ID]bool{}}
	body, err := checkSum(manifest)
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	n := 1
	for line := range bytes.Lines(body) {
		n++
		if err := d.line(line); err != nil {
			return nil, fmt.Errorf("manifest: line %d: %w", n, err)
		}
	}
	if err := d.finish(); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	if !bytes.Equal(d.s.Encode(), manifest) {
		return nil, errors.New("manifest: it is not as this keeper would write it: another version of gpufd did, or somebody changed it")
	}
	return d.s, nil
}

// checkSum returns what is between the first line and the last.
func checkSum(manifest []byte) ([]byte, error) {
	if len(manifest) > maxManifest {
		return nil, fmt.Errorf("%d bytes; %d are allowed", len(manifest), maxManifest)
	}
	rest, ok := bytes.CutPrefix(manifest, []byte(firstLine))
	if !ok {
		first, _, _ := bytes.Cut(manifest, []byte("\n"))
		return nil, fmt.Errorf("it begins with %.40q; this keeper reads %q", first, firstLine)
	}
	end := bytes.LastIndex(manifest, []byte("\n"+lastWord)) + 1
	if end < len(firstLine) || string(manifest[end:]) != lastLine(manifest[:end]) {
		return nil, errors.New("the checksum in its last line is missing or is not that of the others: it is damaged or cut off")
	}
	return rest[:end-len(firstLine)], nil
}

// A decoder reads lines into a state. The record that it reads is not in there yet.
type decoder struct {
	s      *State
	begun  bool // the header has come
	last   ID
	r      *record
	v      *Version     // that parts belong to
	t      *transaction // that bookings and deliveries belong to
	seen   map[uint64]bool
	pidfds map[ID]bool
	taken  map[ID]bool // chunks of the pool
}

func (d *decoder) line(line []byte) error {
	word, object, ok := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte(" "))
	switch {
	case !ok:
		return fmt.Errorf("%.40q is no word and object", line)
	case !d.begun:
		return d.header(string(word), object)
	case string(word) == wordName:
		return d.name(object)
	case d.r == nil && string(word) == wordOutcome:
		return d.outcome(object)
	case d.r == nil:
		return fmt.Errorf("%.40q before the first name", word)
	}
	switch string(word) {
	case wordRetired, wordCurrent:
		return d.version(string(word), object)
	case wordPart:
		return d.part(object)
	case wordTransaction:
		return d.transaction(object)
	case wordDelivered:
		return d.delivered(object)
	case wordBooking:
		return d.booking(object)
	case wordHolder:
		return d.holder(object)
	}
	return fmt.Errorf("unknown word %.40q", word)
}

func (d *decoder) header(word string, object []byte) error {
	var h header
	if word != wordState {
		return fmt.Errorf("%.40q instead of the state", word)
	}
	if err := json.Unmarshal(object, &h); err != nil {
		return err
	}
	for i := range h.Draining {
		if i > 0 && bytes.Compare(h.Draining[i-1][:], h.Draining[i][:]) >= 0 || i == maxDraining {
			return errors.New("the devices that are draining are out of order, or too many")
		}
	}
	d.begun, d.last, d.s.draining, d.s.counts = true, h.Last, h.Draining, h.Counts
	d.s.ids.Store(uint64(h.Last))
	return errors.Join(checkCounts(h.Counts), d.pool(h.Pool))
}

func (d *decoder) name(object []byte) error {
	if err := d.finish(); err != nil {
		return err
	}
	d.r = &record{}
	if err := json.Unmarshal(object, d.r); err != nil {
		return err
	}
	if n := len(d.s.records); n > 0 && d.s.records[n-1].Name >= d.r.Name {
		return fmt.Errorf("name %.40q is out of order", d.r.Name)
	}
	return CheckName(d.r.Name)
}

// finish puts the record that was read into the state.
func (d *decoder) finish() error {
	r := d.r
	if d.r = nil; r == nil {
		if !d.begun {
			return errors.New("it says nothing")
		}
		return nil
	}
	if err := r.check(); err != nil {
		return fmt.Errorf("name %q: %w", r.Name, err)
	}
	d.v, d.t = nil, nil
	r.encode()
	d.s.records = append(d.s.records, r)
	d.s.size += len(r.text)
	d.s.recharge(nil, r)
	return nil
}

func (d *decoder) version(word string, object []byte) error {
	v := &Version{}
	if err := json.Unmarshal(object, v); err != nil {
		return err
	}
	switch {
	case d.r.Current != nil:
		return errors.New("a version behind the current one")
	case v.N == 0 || v.N > d.r.Last || len(d.r.Retired) > 0 && d.r.Retired[len(d.r.Retired)-1].N >= v.N:
		return fmt.Errorf("version %d is out of order", v.N)
	case word == wordCurrent:
		d.r.Current = v
	default:
		d.r.Retired = append(d.r.Retired, v)
	}
	d.v = v
	return checkLabels(v.Labels)
}

func (d *decoder) part(object []byte) error {
	if d.v == nil || len(d.v.Parts) == MaxParts {
		return errors.New("a part of no version, or one too many")
	}
	p := Part{}
	if err := d.readPart(object, &p); err != nil {
		return err
	}
	if p.Index != len(d.v.Parts) || p.Ticket != "" {
		return fmt.Errorf("part %d is out of order, or has a ticket", p.Index)
	}
	d.v.Parts = append(d.v.Parts, p)
	return d.parked(&p)
}

// readPart reads a part that has come.
func (d *decoder) readPart(object []byte, p *Part) error {
	if err := json.Unmarshal(object, p); err != nil {
		return err
	}
	b := booked{Index: p.Index, Device: p.Memory.Device, Kind: p.Memory.Kind, Bytes: p.Bytes}
	if err := errors.Join(p.check(&b), b.check(), checkText("reason", p.Reason, MaxReason)); err != nil {
		return err
	}
	if p.State != OK && p.State != Damaged && p.State != Quarantined || p.Reports < 0 {
		return fmt.Errorf("part %d is %.40q", p.Index, p.State)
	}
	return errors.Join(d.own(uint64(p.Files)), d.own(uint64(p.Table)), d.pidfd(p.Writer.Pidfd))
}

func (d *decoder) transaction(object []byte) error {
	t := &transaction{}
	if err := json.Unmarshal(object, t); err != nil {
		return err
	}
	d.v, d.t = nil, t
	d.r.Pending = append(d.r.Pending, t)
	return errors.Join(checkText("transaction's id", t.ID, MaxTransaction), checkLabels(t.Labels))
}

func (d *decoder) delivered(object []byte) error {
	if d.t == nil || len(d.t.Delivered) == MaxParts {
		return errors.New("a delivered part of no transaction, or one too many")
	}
	p := Part{}
	if err := d.readPart(object, &p); err != nil {
		return err
	}
	if len(p.Parked) > 0 {
		return fmt.Errorf("part %d is parked before its version is committed", p.Index)
	}
	d.t.Delivered = append(d.t.Delivered, p)
	if p.Ticket == "" {
		return nil // from a keeper that knew no outcomes
	}
	return d.ticket(p.Ticket)
}

func (d *decoder) booking(object []byte) error {
	if d.t == nil || len(d.t.Bookings) == MaxParts {
		return errors.New("a booking of no transaction, or one too many")
	}
	b := booked{}
	if err := json.Unmarshal(object, &b); err != nil {
		return err
	}
	d.t.Bookings = append(d.t.Bookings, b)
	return errors.Join(b.check(), d.ticket(b.Ticket), d.pidfd(b.By.Pidfd))
}

func (d *decoder) holder(object []byte) error {
	h := held{}
	if err := json.Unmarshal(object, &h); err != nil {
		return err
	}
	if h.ID == 0 {
		return errors.New("a holder without an id")
	}
	if (h.Of != nil) != h.Holder.Revoked || h.Holder.Revoked && (h.Holder.Lost || h.Of.Part != h.Holder.Part) {
		return fmt.Errorf("holder %d was told to let go of something, or was not", h.ID)
	}
	if v := d.r.version(h.Holder.Version); !d.r.knew(h.Holder) && (v == nil || h.Holder.Part < 0 || h.Holder.Part >= len(v.Parts)) {
		return fmt.Errorf("holder %d of part %d of version %d, which is not there", h.ID, h.Holder.Part, h.Holder.Version)
	}
	d.r.Holders = append(d.r.Holders, h)
	return errors.Join(d.own(uint64(h.ID)), d.pidfd(h.Holder.Pidfd))
}

// knew reports whether the holder may be of a version that is not kept any more.
func (r *record) knew(h Holder) bool {
	return h.Revoked && r.version(h.Version) == nil && h.Version > 0 && h.Version <= r.Last && h.Part >= 0 && h.Part < MaxParts
}

// own returns an error unless an id was given out, and comes once.
func (d *decoder) own(id uint64) error {
	if id == 0 {
		return nil
	}
	if id > uint64(d.last) || d.seen[id] || d.pidfds[ID(id)] {
		return fmt.Errorf("id %d comes twice, or was not given out", id)
	}
	d.seen[id] = true
	return nil
}

// pidfd returns an error unless an id is that of pidfds alone.
func (d *decoder) pidfd(id ID) error {
	if id == 0 {
		return nil
	}
	if d.seen[uint64(id)] {
		return fmt.Errorf("id %d is of a pidfd and of something else", id)
	}
	d.pidfds[id] = true
	return nil
}
