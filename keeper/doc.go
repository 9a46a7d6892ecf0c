// Package keeper keeps GPU memory that outlives the processes that made it: an inference
// server that restarts takes its weights from a keeper, and does not load them again.
//
// A keeper ([Open]) holds file descriptors of memory under names, in versions of one part
// or several, and gives them to readers. It loads no libcuda, maps no memory and needs no
// GPU. The fd store, a process of its own ([RunStore]), holds what must outlive the keeper. If
// a keeper is killed, the next one goes on where it was.
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
