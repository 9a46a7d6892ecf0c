// Package keeper keeps GPU memory that outlives the processes that made it: an inference
// server that restarts takes its weights from a keeper, and does not load them again.
//
// A keeper (package keeper/server, and the program gpufd keeper) holds file descriptors of memory
// under names, in versions of one part or several, and gives them to readers. This package is what
// writers and readers call.
//
//	k, err := keeper.Dial(ctx, socket)                              // a writer
//	kept, err := k.Put(ctx, keeper.Put{Name: "llama"}, part)        // loads, hands over
//
//	att, err := share.Attach(ctx, socket, "llama", dev)             // a reader
//
// Readers need nothing of this package: share.Attach and share.Follow work on a keeper as
// on any producer ([OfferName], [Data]). [Attach] takes all parts of one version.
//
// # What bites
//
// Any process that has a descriptor can write the memory. Access is what a reader asked for; it
// protects nothing. Quotas count what writers declare. docs/security.md says whom to trust with
// what, docs/keeper.md how to use a keeper, and docs/wire.md what goes over the sockets.
package keeper
