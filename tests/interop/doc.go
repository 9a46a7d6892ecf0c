// Package interop tests the programs in Go, Python and C with one another, and what a liar between
// them or with lingering descriptors can do to them.
package interop
