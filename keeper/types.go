package keeper

import (
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
)

// What a keeper says is defined in package api, which needs no driver.
type (
	Status   = api.Status   // a keeper: see [Client.Status]
	Event    = api.Event    // what happens to a name
	Error    = api.Error    // a keeper's refusal, with the reason
	Info     = api.Info     // a name that a keeper has
	PartInfo = api.PartInfo // a part that a keeper has
	Holder   = api.Holder   // a process that has a lease of what is kept, or may still write it
	Data     = api.Data     // describes a part to its readers
)

// OfferName returns the name that readers attach to for a part of a version with that many
// parts.
func OfferName(name string, part, parts int) string { return protocol.OfferName(name, part, parts) }

// DrainNotice is what the keeper tells readers of a name that is drained
// (share.Attachment.Notices).
const DrainNotice = protocol.DrainNotice
