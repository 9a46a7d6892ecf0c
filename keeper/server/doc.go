// Package server runs a keeper. Package keeper is its client.
//
// A keeper ([Open]) holds file descriptors of memory under names, in versions of one part or several,
// and gives them to readers. It needs no GPU, loads no libcuda and maps no memory. The fd store, a
// process of its own ([RunStore]), holds what must outlive the keeper: if a keeper is killed, the next
// one goes on where it was. [TakeOver] and [TakeBack] replace a living keeper by another one, and
// [End] ends keeper and fd store.
//
// docs/keeper.md says how to use a keeper, and docs/security.md whom to trust with what.
package server
