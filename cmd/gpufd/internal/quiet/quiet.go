// Package quiet keeps package log silent until the program begins. The metrics library logs
// a line when it is initialised on a machine without pressure files in its cgroup (PSI), which
// is nothing to say to who runs a command.
//
// It works since this package needs less than that library, so that Go initialises it before
// (the specification's "Program initialization").
package quiet

import (
	"io"
	"log"
)

var before = silence()

func silence() io.Writer {
	w := log.Writer()
	log.SetOutput(io.Discard)
	return w
}

// End has package log write again where it did.
func End() { log.SetOutput(before) }
