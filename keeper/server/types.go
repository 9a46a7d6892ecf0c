package server

import (
	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/keeper/api"
)

// What a keeper says, and its policy, are defined in package api.
type (
	Status = api.Status // see keeper.Client.Status
	Info   = api.Info   // what is kept under a name
	Holder = api.Holder // a process that has a lease of what is kept, or may still write it
	Error  = api.Error  // a keeper's refusal, with the reason
	Policy = api.Policy // who may read, write and remove what, and how much
	Rule   = api.Rule   // of a Policy: what a user or a group may do with names that begin alike
	Right  = api.Right  // one of those that a Rule allows
)

// The rights.
const (
	Read   = api.Read
	Write  = api.Write
	Remove = api.Remove
)

// ErrClosed says that a server has ended by [Server.Close]. It is [gpumem.ErrClosed].
var ErrClosed = gpumem.ErrClosed
