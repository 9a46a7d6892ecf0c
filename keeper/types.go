package keeper

import (
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/keeper/internal/state"
)

// A Status describes a keeper: see [Client.Status].
type Status = protocol.Status

// An Event is what happens to a name: Kind is committed, damaged, quarantined, draining, removed,
// or served (again). Without a name it is about a device.
type Event = protocol.Event

// An Error is a keeper's refusal, with the reason.
type Error = state.Error

// An Info describes a name that a keeper has.
type Info = state.Info

// A PartInfo describes a part that a keeper has.
type PartInfo = state.PartInfo

// A Holder is a process that has a lease of what is kept, or may still write it.
type Holder = state.Holder

// Data describes a part to its readers: it is the application data of the part's offer, as JSON
// (docs/wire.md).
type Data = protocol.Data

// OfferName returns the name that readers attach to for a part of a version with that many
// parts.
func OfferName(name string, part, parts int) string { return protocol.OfferName(name, part, parts) }

// DrainNotice is what the keeper tells readers of a name that is drained
// (share.Attachment.Notices).
const DrainNotice = protocol.DrainNotice
