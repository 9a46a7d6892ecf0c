package wire

import (
	"fmt"

	"github.com/gpufd/gpufd/gpumem"
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
	TypeConfirm  Type = 9 // producer → consumer: the opened legacy memory is the one that was offered

	TypeFarewell   Type = 10 // either: it leaves in order
	TypeNotice     Type = 11 // either: a message of the application's
	TypeList       Type = 12 // consumer → producer: which offers are there?
	TypeListed     Type = 13 // producer → consumer: some of them
	TypeData       Type = 14 // producer → consumer: application data, as a descriptor
	TypeSuperseded Type = 15 // producer → consumer: the name stands for other memory now
	TypeCursors    Type = 16 // producer → consumer: memory of the two alone, as a descriptor
	TypeDetached   Type = 17 // consumer → producer: it has unmapped the memory, and keeps its lease
)

// String gives the name that docs/wire.md uses.
func (t Type) String() string {
	names := [...]string{
		TypeAttach: "ATTACH", TypeOffer: "OFFER", TypeRefuse: "REFUSE", TypeProgress: "PROGRESS", TypeMapped: "MAPPED",
		TypeVerdict: "VERDICT", TypeRevoke: "REVOKE", TypePublish: "PUBLISH", TypeConfirm: "CONFIRM",
		TypeList: "LIST", TypeListed: "LISTED", TypeData: "DATA", TypeCursors: "CURSORS",
		TypeFarewell:   "FAREWELL",
		TypeNotice:     "NOTICE",
		TypeSuperseded: "SUPERSEDED",
		TypeDetached:   "DETACHED",
	}
	if int(t) >= len(names) || names[t] == "" {
		return fmt.Sprintf("type %d", uint16(t))
	}
	return names[t]
}

// Attach says what a consumer wants.
type Attach struct {
	Driver       gpumem.Kind
	Access       gpumem.Access
	Name         string // "" is the only offer there is
	Capabilities Capabilities
	Resume       uint64 // generation of the memory that is mapped already, or 0
	After        uint64 // wait for memory of a larger generation than this; with Reattach, take newer memory, too; 0 is any
	Reattach     uint64 // generation of the memory that was detached and is wanted again, or 0; not with Resume
	Process      Process
}

// Offer is one record of an offer. The records of an offer are alike, except for the
// chunks whose descriptors come along.
type Offer struct {
	Memory       gpumem.Descriptor
	Access       gpumem.Access
	Name         string
	Data         []byte
	First        int                  // index of the first chunk in this record
	FDs          int                  // descriptors in this record
	Pending      bool                 // the data is not there yet: a Publish follows
	Legacy       *gpumem.LegacyHandle // in place of descriptors; then chunks are 1 and the granularity 0
	Capabilities Capabilities
	DataSize     uint64 // bytes of application data that a Data brings, or 0
	CursorSize   uint64 // bytes of memory that a Cursors brings, or 0
	Resume       uint64 // the generation that the consumer resumes, without descriptors, or 0
	Process      Process
}

// Refuse ends a conversation.
type Refuse struct {
	Code RefusalCode
	Text string
}

// Error makes a Refuse the error with which a peer is turned away.
func (m Refuse) Error() string { return fmt.Sprintf("%s: %s", m.Code, m.Text) }

// Reason returns the code in words, for a producer that counts refusals (errors.As finds it by this method).
func (m Refuse) Reason() string { return m.Code.String() }

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
type Revoke struct {
	Text   string
	Reason EndReason
}

// An EndReason says why the producer ends a lease. It is 0 in the records of older peers, and
// may be any number in those of later ones.
type EndReason uint64

// The reasons.
const (
	EndWithdrawn  EndReason = 1 // the offer has ended, and its name is given up
	EndSuperseded EndReason = 2 // newer memory has the name, and the time of the older is over
	EndRevoked    EndReason = 3 // this consumer in particular is to let go; the text says why
	EndRestarting EndReason = 4 // the producer ends for a successor: the memory stays, and the name comes back
)

// Publish says that the data of a pending offer is there.
type Publish struct{ Generation uint64 }

// Confirm says that the opened legacy memory is the offered one.
type Confirm struct{ Generation uint64 }

// List asks which offers there are.
type List struct{}

// Listed is one record of a list of offers.
type Listed struct {
	Left   int // offers in the records after this one
	Offers []Listing
}

// A Listing is what a list says of one offer.
type Listing struct {
	Name       string
	Driver     gpumem.Kind
	Device     gpumem.UUID
	Handle     HandleType
	Access     gpumem.Access
	Size       uint64
	Generation uint64
	DataSize   uint64
	Pending    bool
	Counts     Counts
}

// Counts are what a list counts of an offer. An older producer does not tell.
type Counts struct {
	Told   bool
	Leases uint32 // that consumers have now
	Slots  uint32 // that the memory is divided into, as that of a channel is; 0 if it is not
}

// Data brings the application data of the offer before it, as a descriptor.
type Data struct{}

// Cursors brings a descriptor of memory that this consumer and the producer both write, and
// nobody else.
type Cursors struct{}

// Farewell says that its sender leaves in order. A consumer has unmapped the memory by then,
// and nothing of its own uses it any more.
type Farewell struct{}

// Detached says that a consumer has unmapped and released the memory and holds no descriptor of it. It wants its
// lease to be kept for Keep milliseconds; 0 is as long as the connection lives.
type Detached struct{ Keep uint64 }

// Superseded says that the producer offers other memory, of this generation, under the name.
type Superseded struct{ Generation uint64 }

// Notice is a message of the application's.
type Notice struct{ Data []byte }

// Unknown is a record that this package does not know and may ignore.
type Unknown struct{ Kind Type }

// Type returns the message's type.
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
func (Cursors) Type() Type    { return TypeCursors }
func (Superseded) Type() Type { return TypeSuperseded }
func (Notice) Type() Type     { return TypeNotice }
func (Farewell) Type() Type   { return TypeFarewell }
func (Detached) Type() Type   { return TypeDetached }
func (m Unknown) Type() Type  { return m.Kind }

// A HandleType says by what kind of handle offered memory is opened.
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

// HandleType returns the type of handle that opens the memory.
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
	RefusedParts       RefusalCode = 12 // what has that name is offered in parts, each by a name of its own
)

// String says in a word or two what the code means.
func (c RefusalCode) String() string {
	names := [...]string{"no such offer", "access", "driver", "busy", "version", "bad record", "timed out", "not allowed", "too fast", "not supported", "other memory", "several parts"}
	if c < 1 || int(c) > len(names) {
		return fmt.Sprintf("code %d", uint16(c))
	}
	return names[c-1]
}
