package api

import "time"

// An Info describes a name. Slices and maps are never nil.
type Info struct {
	Name          string            `json:"name"`
	Version       uint64            `json:"version"`        // 0: there is none
	Digest        string            `json:"digest"`         // over the digests of its parts
	State         string            `json:"state"`          // ok, damaged, quarantined, draining; without a version reserved or removed
	Bytes         uint64            `json:"bytes"`          // of the current version
	ReservedBytes uint64            `json:"reserved_bytes"` // bytes booked by writers that have not committed
	Labels        map[string]string `json:"labels"`
	Parts         []PartInfo        `json:"parts"`
	Holders       []Holder          `json:"holders"` // of the current version
	Committed     time.Time         `json:"committed,omitzero"`
	Retired       []RetiredInfo     `json:"retired"`
	Pending       []PendingInfo     `json:"pending"`
	ParkedBytes   uint64            `json:"parked_bytes,omitempty"` // in memory of the host, of all versions
	// FreesBytes is how many bytes are free at once if the name is removed: of versions without
	// holders, or with such alone that have detached, the parts whose writers are fenced and that are on their devices. Others may free theirs, too.
	FreesBytes uint64 `json:"frees_bytes"`
}

// A PartInfo describes a part.
type PartInfo struct {
	Part       int       `json:"part"`   // its index, from 0
	Device     string    `json:"device"` // the device's UUID
	Bytes      uint64    `json:"bytes"`
	Digest     string    `json:"digest"`           // see keeper.Digest
	Layout     string    `json:"layout,omitempty"` // see Data.Layout
	Parked     bool      `json:"parked,omitempty"` // its bytes are in memory of the host, and not on the device
	State      PartState `json:"state"`
	Reason     string    `json:"reason,omitempty"`
	Reports    int       `json:"reports,omitempty"` // by readers that may not change its state
	WritableBy []int32   `json:"writable_by"`       // processes that are not fenced: its writer, and holders that may write
	Writer     *Holder   `json:"writer,omitempty"`  // the process that wrote it, dead or not; nil from a keeper that does not say
}

// A RetiredInfo describes a version that has been replaced or removed.
type RetiredInfo struct {
	Version uint64    `json:"version"`
	Bytes   uint64    `json:"bytes"`
	Retired time.Time `json:"retired,omitzero"`
	Gone    bool      `json:"gone,omitempty"` // the keeper has given it up: its holders alone may have it
	Parts   []PartOn  `json:"parts"`
	Holders []Holder  `json:"holders"`
}

// A PartOn is the short form of a part: for one whose details are not known, or
// not wanted.
type PartOn struct {
	Part   int    `json:"part"`
	Device string `json:"device"`
	Bytes  uint64 `json:"bytes"`
	Parked bool   `json:"parked,omitempty"`
}

// A PendingInfo describes a version in the making.
type PendingInfo struct {
	Transaction string    `json:"transaction,omitempty"`
	Parts       int       `json:"parts"`             // that it will have
	Delivered   int       `json:"delivered"`         // that have come
	Bytes       uint64    `json:"bytes"`             // of the parts booked or come
	Writers     []Holder  `json:"writers"`           // of the parts that have not come
	Devices     []PartOn  `json:"devices"`           // of all its parts, booked or come
	Deadline    time.Time `json:"deadline,omitzero"` // when it is dropped
}

// A PartState tells whether a part is served.
type PartState string

// The states of a part.
const (
	OK          PartState = "ok"
	Damaged     PartState = "damaged"     // for good: its bytes are not what its digest says
	Quarantined PartState = "quarantined" // until a process that may remove the name says OK
)
