// Package serve talks with consumers for package share and for keepers: a [Server] offers descriptors of memory, which a
// [Source] lends, by names, and package broker decides who gets what. It needs no driver.
//
// A connection, an offer or a process that died brings an event: the broker applies it, and what follows is
// performed after unlocking, in order for each connection (loop.go). What both sides of a
// connection need is here, too: [Transport], [PeerFence] and the errors.
package serve
