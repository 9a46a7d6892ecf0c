// Package load tests many handoffs at once: processes that are killed at random, that flood a
// producer, or that follow one that is replaced. Those that live on must use what they used before.
package load
