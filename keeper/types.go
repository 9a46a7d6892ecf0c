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
