package wire

import (
	"fmt"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/vmm"
)

// A Message is what one record says.
type Message interface {
	Type() Type
	append(b []byte) []byte
}

// Type is the type of a record.
type Type uint16

// The types of records.
const (
	TypeAttach   Type = 1 // consumer → producer: what it wants
	TypeOffer    Type = 2 // producer → consumer: description and descriptors
	TypeRefuse   Type = 3 // either: no, and why
	TypeProgress Type = 4 // either: still at work
	TypeMapped   Type = 5 // consumer → producer: memory is mapped
	TypeVerdict  Type = 6 // consumer → producer: what it found
	TypeRevoke   Type = 7 // producer → consumer: the offer ends
	TypePublish  Type = 8 // producer → consumer: the data of a pending offer is there
	TypeConfirm  Type = 9 // producer → consumer: the legacy memory that was opened is the one that was offered

	TypeFarewell   Type = 10 // either: it leaves in order
	TypeNotice     Type = 11 // either: a message of the application's
	TypeList       Type = 12 // consumer → producer: which offers are there?
	TypeListed     Type = 13 // producer → consumer: some of them
	TypeData       Type = 14 // producer → consumer: application data, as a descriptor
	TypeSuperseded Type = 15 // producer → consumer: the name stands for other memory now
)

// String gives the name that docs/wire.md uses.
func (t Type) String() string {
	names := [...]string{
		TypeAttach: "ATTACH", TypeOffer: "OFFER", TypeRefuse: "REFUSE", TypeProgress: "PROGRESS", TypeMapped: "MAPPED",
		TypeVerdict: "VERDICT", TypeRevoke: "REVOKE", TypePublish: "PUBLISH", TypeConfirm: "CONFIRM",
		TypeList: "LIST", TypeListed: "LISTED", TypeData: "DATA",
		TypeFarewell:   "FAREWELL",
		TypeNotice:     "NOTICE",
		TypeSuperseded: "SUPERSEDED",
	}
	if int(t) >= len(names) || names[t] == "" {
		return fmt.Sprintf("type %d", uint16(t))
	}
	return names[t]
}

// Attach says what a consumer wants.
type Attach struct {
	Driver       cu.Kind
	Access       cu.Access
	Name         string // "" is the only offer there is
	Capabilities Capabilities
	Resume       uint64 // generation of the memory that is mapped already, or 0
	After        uint64 // the memory is waited for until it is of a larger generation; 0 is any
	Process      Process
}

// Offer is one record of an offer: all of them are alike but for the chunks whose
// descriptors come along.
type Offer struct {
	Memory       vmm.Descriptor
	Access       cu.Access
	Name         string
	Data         []byte
	First        int           // index of the first chunk in this record
	FDs          int           // descriptors in this record
	Pending      bool          // the data is not there yet: a Publish follows
	Legacy       *LegacyHandle // instead of descriptors; chunks are 1 and the granularity 0
	Capabilities Capabilities
	DataSize     uint64 // of application data that a Data brings, or 0
	Resume       uint64 // the consumer's, to which no descriptors are sent, or 0
	Process      Process
}

// Refuse ends a conversation.
type Refuse struct {
	Code RefusalCode
	Text string
}

// Error makes it the error of a peer that is turned away.
func (m Refuse) Error() string { return fmt.Sprintf("%s: %s", m.Code, m.Text) }

// Progress says that its sender is at work.
type Progress struct {
	Done, Total  uint64
	Capabilities Capabilities
}

// Mapped says that a consumer has mapped the memory of that generation.
type Mapped struct{ Generation uint64 }

// Verdict says what a consumer found.
type Verdict struct {
	OK   bool
	Text string
}

// Revoke ends an offer, or a lease of it.
type Revoke struct{ Text string }

// Publish says that the data of a pending offer is there.
type Publish struct{ Generation uint64 }

// Confirm says that opened legacy memory is what was offered.
type Confirm struct{ Generation uint64 }

// List asks which offers there are.
type List struct{}

// Listed is one record of a list of offers.
type Listed struct {
	Left   int // offers that the records behind this one list
	Offers []Listing
}

// A Listing is what a list says of one offer.
type Listing struct {
	Name       string
	Driver     cu.Kind
	Device     cu.UUID
	Handle     HandleType
	Access     cu.Access
	Size       uint64
	Generation uint64
	DataSize   uint64
	Pending    bool
}

// Data brings the application data of the offer before it, as a descriptor.
type Data struct{}

// Farewell says that its sender leaves in order: a consumer has unmapped the memory, and
// nothing of its own uses that any more.
type Farewell struct{}

// Superseded says that the producer offers other memory under the name, of that
// generation.
type Superseded struct{ Generation uint64 }

// Notice is a message of the application's.
type Notice struct{ Data []byte }

// Unknown is a record that this package does not know, and that may be ignored.
type Unknown struct{ Kind Type }

// Type tells the message's type.
func (Attach) Type() Type     { return TypeAttach }
func (Offer) Type() Type      { return TypeOffer }
func (Refuse) Type() Type     { return TypeRefuse }
func (Progress) Type() Type   { return TypeProgress }
func (Mapped) Type() Type     { return TypeMapped }
func (Verdict) Type() Type    { return TypeVerdict }
func (Revoke) Type() Type     { return TypeRevoke }
func (Publish) Type() Type    { return TypePublish }
func (Confirm) Type() Type    { return TypeConfirm }
func (List) Type() Type       { return TypeList }
func (Listed) Type() Type     { return TypeListed }
func (Data) Type() Type       { return TypeData }
func (Superseded) Type() Type { return TypeSuperseded }
func (Notice) Type() Type     { return TypeNotice }
func (Farewell) Type() Type   { return TypeFarewell }
func (m Unknown) Type() Type  { return m.Kind }

// A HandleType says what offered memory is opened by.
type HandleType uint8

// The types of handles.
const (
	HandleFD     HandleType = 1 // file descriptors
	HandleLegacy HandleType = 2 // 64 bytes of legacy IPC
)

// String gives "vmm" or "legacy".
func (h HandleType) String() string {
	switch h {
	case HandleFD:
		return "vmm"
	case HandleLegacy:
		return "legacy"
	}
	return fmt.Sprintf("HandleType(%d)", uint8(h))
}

// A LegacyHandle is what the memory of an offer is opened by that carries no
// descriptors.
type LegacyHandle struct {
	Handle cu.IPCHandle // of a whole allocation
	Offset uint64       // of the memory in it, in bytes
}

// HandleType is what the memory is opened by.
func (m Offer) HandleType() HandleType {
	if m.Legacy != nil {
		return HandleLegacy
	}
	return HandleFD
}

// RefusalCode says why a peer refused.
type RefusalCode uint16

// The codes of a refusal.
const (
	RefusedName        RefusalCode = 1  // there is no offer of that name
	RefusedAccess      RefusalCode = 2  // more access than the offer gives
	RefusedKind        RefusalCode = 3  // drivers of different kinds
	RefusedBusy        RefusalCode = 4  // all places are taken, or too many descriptors are in flight
	RefusedVersion     RefusalCode = 5  // other version of the wire format
	RefusedRecord      RefusalCode = 6  // malformed or unexpected record
	RefusedTimeout     RefusalCode = 7  // too long over a step
	RefusedPolicy      RefusalCode = 8  // the peer is not one that is admitted
	RefusedRate        RefusalCode = 9  // too many records a second
	RefusedUnsupported RefusalCode = 10 // a record, field, flag or handle that the sender does not know
	RefusedStale       RefusalCode = 11 // other memory than the peer has mapped
)

// String says in a word or two what the code means.
func (c RefusalCode) String() string {
	names := [...]string{"no such offer", "access", "driver", "busy", "version", "bad record", "timed out", "not allowed", "too fast", "not supported", "other memory"}
	if c < 1 || int(c) > len(names) {
		return fmt.Sprintf("code %d", uint16(c))
	}
	return names[c-1]
}
