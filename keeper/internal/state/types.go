package state

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/keeper/api"
)

// Types of answers and of a policy: see package api.
type (
	Who         = api.Who
	Info        = api.Info
	PartInfo    = api.PartInfo
	PartOn      = api.PartOn
	RetiredInfo = api.RetiredInfo
	PendingInfo = api.PendingInfo
	PartState   = api.PartState
	Error       = api.Error
	Code        = api.Code
	Rule        = api.Rule
	Right       = api.Right
	Duration    = api.Duration
)

// The states of a part, the codes of an [Error] and the rights.
const (
	OK          = api.OK
	Damaged     = api.Damaged
	Quarantined = api.Quarantined

	BadRequest    = api.BadRequest
	Denied        = api.Denied
	NotFound      = api.NotFound
	NoRoom        = api.NoRoom
	Conflict      = api.Conflict
	Taken         = api.Taken
	Quota         = api.Quota
	Draining      = api.Draining
	IsDamaged     = api.IsDamaged
	IsQuarantined = api.IsQuarantined
	Expired       = api.Expired

	Read   = api.Read
	Write  = api.Write
	Remove = api.Remove
)

// An ID names descriptors in the fd store. 0 is none.
type ID uint64

// A Writer wrote a part, or is about to. It can write to the part's memory until it is
// fenced.
type Writer struct {
	Who
	Pidfd  ID        `json:"pidfd,omitzero"` // 0 when there is none, and once it is fenced
	Since  time.Time `json:"since"`          // when it booked
	Fenced bool      `json:"fenced,omitzero"`
}

// A Part is the memory on one device that a version has, or a share of that.
type Part struct {
	Index     int               `json:"index"`
	Memory    gpumem.Descriptor `json:"memory"`
	Bytes     uint64            `json:"bytes"`            // that count: Memory.Size
	Digest    string            `json:"digest"`           // "gpufd-d1:" and 32 hexadecimal digits, as its writer declared
	Layout    string            `json:"layout,omitzero"`  // "gpufd-l1:" and 32 hexadecimal digits: a digest of its tensors' places, or ""
	Files     ID                `json:"files"`            // the memory's descriptors, or 0
	Parked    []ID              `json:"parked,omitempty"` // the chunks of the pool that have its bytes, in order; then Files is 0
	Table     ID                `json:"table,omitzero"`
	Ticket    string            `json:"ticket,omitzero"`     // that it came with, until its version is committed
	TableSize uint64            `json:"table_size,omitzero"` // bytes
	State     PartState         `json:"state"`
	Reason    string            `json:"reason,omitzero"`  // why it is not served
	Reports   int               `json:"reports,omitzero"` // by readers that may not change its state
	Writer    Writer            `json:"writer"`
}

// A Version is what one commit published.
type Version struct {
	N         uint64            `json:"n"`
	Committed time.Time         `json:"committed"`
	Labels    map[string]string `json:"labels,omitempty"`
	Digest    string            `json:"digest"`           // over the digests of its parts
	Retired   time.Time         `json:"retired,omitzero"` // zero for the current one, and until Retire has noted it
	Parts     []Part            `json:"-"`                // in the order of their indices
}

// bytes is the sum over the parts.
func (v *Version) bytes() (sum uint64) {
	for i := range v.Parts {
		sum = plus(sum, v.Parts[i].Bytes)
	}
	return sum
}

// A Booking announces a part of a version. The part counts against quotas at once.
type Booking struct {
	Name        string
	Transaction string // common to the parts of one version; "" for a version of one part
	Parts       int    // that the version has
	Index       int    // of this one, from 0
	Device      gpumem.UUID
	Kind        gpumem.Kind
	Bytes       uint64
	Labels      map[string]string // of the version
	Expect      *uint64           // the current version has to be this one, 0 for none; nil: whichever
	By          Writer
	At          time.Time
	Deadline    time.Time // of the whole transaction the latest counts; zero, without a transaction: none
}

// Private begins the id of a transaction whose parts all come from one process: if that
// dies before the last part, no other process delivers it.
const Private = "put-"

// A HoldID names a holder of a version. It is never used again.
type HoldID uint64

// A Holder has a lease of a part, or had one and may still use the memory.
type Holder struct {
	Who
	Version  uint64        `json:"version,omitzero"`
	Part     int           `json:"part"`
	Since    time.Time     `json:"since"`
	Fenced   bool          `json:"fenced"`            // its process has ended
	Lost     bool          `json:"lost,omitzero"`     // its connection has ended without a goodbye
	Revoked  bool          `json:"revoked,omitzero"`  // it was told to let go, and nobody knows whether it has
	Detached bool          `json:"detached,omitzero"` // it said that it has none of the memory, and keeps its lease
	Pidfd    ID            `json:"pidfd,omitzero"`    // 0 when there is none, and once it is fenced
	Access   gpumem.Access `json:"access"`            // in JSON as its String
}

// shown returns the holder as answers have it.
func (h Holder) shown() api.Holder {
	return api.Holder{Who: h.Who, Version: h.Version, Part: h.Part, Access: h.Access, Since: h.Since, Fenced: h.Fenced, Lost: h.Lost, Revoked: h.Revoked, Detached: h.Detached, Process: uint64(h.Pidfd)}
}

// IsProcess reports whether two holders are known to be one process ([api.Holder.SameProcess]). While a
// process is not fenced, no other process has its pid.
func (h Holder) IsProcess(o Holder) bool { return h.shown().SameProcess(o.shown()) }

// plainHolder is Holder without its methods.
type plainHolder Holder

// MarshalJSON writes the access as its name.
func (h Holder) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		plainHolder
		Access string `json:"access"`
	}{plainHolder(h), h.Access.String()})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (h *Holder) UnmarshalJSON(text []byte) error {
	var v struct {
		plainHolder
		Access string `json:"access"`
	}
	if err := json.Unmarshal(text, &v); err != nil {
		return err
	}
	*h = Holder(v.plainHolder)
	for _, a := range []gpumem.Access{gpumem.ReadOnly, gpumem.ReadWrite} {
		if v.Access == a.String() {
			h.Access = a
			return nil
		}
	}
	return fmt.Errorf("access %q; want %q or %q", v.Access, gpumem.ReadOnly, gpumem.ReadWrite)
}

// asHolder returns the writer as a holder, for errors that name the processes in the way.
func (w Writer) asHolder(part int) api.Holder {
	return api.Holder{Who: w.Who, Part: part, Access: gpumem.ReadWrite, Since: w.Since, Fenced: w.Fenced, Process: uint64(w.Pidfd)}
}

// leased reports whether the holder has its lease.
func (h Holder) leased() bool { return !h.Lost && !h.Revoked }
