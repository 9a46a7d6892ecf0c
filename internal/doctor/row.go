// Package doctor implements gpufd doctor: it finds out what keeps GPU memory from being
// shared here, mostly by sharing some. docs/doctor.md is for its users.
package doctor

import (
	"fmt"

	"github.com/gpufd/gpufd/internal/advice"
)

// A Status is the result of a check.
type Status string

// The statuses, from good to bad.
const (
	OK      Status = "OK"      // it was tried, and works
	Unknown Status = "UNKNOWN" // it was not tried, or nothing can be said of it
	Warn    Status = "WARN"    // something that others may need does not work, or may not
	Fail    Status = "FAIL"    // it was tried, and does not work
)

// A Row is what one check found.
type Row struct {
	ID     string `json:"id"` // a heading of docs/doctor.md
	Status Status `json:"status"`
	Device string `json:"device,omitempty"` // the UUID, of a check for each device
	Seen   string `json:"seen"`             // what was found
	Cause  string `json:"cause,omitempty"`  // for WARN and FAIL: a heading of docs/doctor.md
	Why    string `json:"why"`              // why it matters
	Do     string `json:"do,omitempty"`     // for WARN and FAIL: what to do
	Peer   bool   `json:"-"`                // it is about the other side
}

// row returns a row with the words of the cause, or of the check if cause is "".
func row(id string, status Status, cause, format string, args ...any) Row {
	r := Row{ID: id, Status: status, Seen: fmt.Sprintf(format, args...)}
	about := id
	if status == Warn || status == Fail {
		if r.Cause = cause; cause == "" {
			r.Cause = id
		}
		about = r.Cause
	}
	c, _ := advice.Find(about)
	r.Why = c.Why
	if r.Cause != "" {
		r.Do = c.Do
	}
	return r
}

// The exit codes of gpufd doctor, which are those of all commands.
const (
	exitOK      = 0 // no row is FAIL
	exitFailed  = 1 // a row about the other side is FAIL
	exitMachine = 3 // a row about this machine is FAIL
	exitPeer    = 4 // a check did not end in its time, or the other side does not answer
)

// ExitCode returns the exit code of the worst row.
func ExitCode(rows []Row) int {
	code := exitOK
	rank := map[int]int{exitOK: 0, exitPeer: 1, exitFailed: 2, exitMachine: 3}
	for _, r := range rows {
		this := exitOK
		switch {
		case r.Status == Fail && (r.Cause == "timeout" || r.Cause == "peer-silent"):
			this = exitPeer
		case r.Status == Fail && r.Peer:
			this = exitFailed
		case r.Status == Fail:
			this = exitMachine
		}
		if rank[this] > rank[code] {
			code = this
		}
	}
	return code
}
