package keeper

import "github.com/gpufd/gpufd/keeper/internal/protocol"

// OfferName returns the name that readers attach to for a part of a version with that many
// parts.
func OfferName(name string, part, parts int) string { return protocol.OfferName(name, part, parts) }

// DrainNotice is what the keeper tells readers of a name that is drained
// (share.Attachment.Notices).
const DrainNotice = protocol.DrainNotice
