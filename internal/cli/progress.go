package cli

import "io"

// NewOutput returns an Output that prints to w for people, for a command that is no
// [App]. It shows progress if w is a terminal in the end, which the caller knows.
func NewOutput(w io.Writer, progress bool) *Output {
	o := newOutput(w, false)
	o.terminal = progress
	return o
}
