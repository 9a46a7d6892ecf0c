package cli

import "io"

// NewProgress returns an Output that shows progress alone, if w is a terminal.
func NewProgress(w io.Writer) *Output {
	o := newOutput(w, false)
	o.terminal = isTerminal(w)
	return o
}
