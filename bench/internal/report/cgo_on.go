//go:build cgo

package report

const builtWith = "with cgo"
