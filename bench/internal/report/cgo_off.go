//go:build !cgo

package report

const builtWith = "without cgo"
