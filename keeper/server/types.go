package server

import (
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/keeper/internal/state"
)

// These are the types of the same names in package keeper, for programs that need no driver.
type (
	Status = protocol.Status // see keeper.Client.Status
	Info   = state.Info      // what is kept under a name
	Holder = state.Holder    // a process that has a lease of what is kept, or may still write it
	Error  = state.Error     // a keeper's refusal, with the reason
)

// A Rule of a [Policy] says what a user or a group may do with names that begin alike.
type Rule = state.Rule

// A Right is one of those that a [Rule] allows.
type Right = state.Right

// The rights.
const (
	Read   = state.Read
	Write  = state.Write
	Remove = state.Remove
)

// ErrClosed says that a server has ended by [Server.Close]. It is share.ErrClosed.
var ErrClosed = serve.ErrClosed
