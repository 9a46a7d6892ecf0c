// Package serve talks with consumers for package share: a [Server] offers descriptors of memory, which a
// [Source] lends, by names, and package broker decides who gets what. It needs no driver.
//
// Whoever brings an event (a connection, an offer, a process that died) has the broker apply it, and
// performs what follows after unlocking, in order for each connection: see loop.go. What both sides of a
// connection need is here, too: [Transport], [PeerFence] and the errors.
package serve
