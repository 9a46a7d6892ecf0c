// Package doctor implements gpufd doctor: it finds out what keeps GPU memory from being
// shared here, mostly by sharing some. docs/doctor.md is for its users.
package doctor

import (
	"fmt"

	"github.com/gpufd/gpufd/internal/advice"
	"github.com/gpufd/gpufd/internal/cli"
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

// ExitCode returns the exit code of the worst row: 3 for one about this machine, 1 for one about the other side, and 4 for
// a check that did not end in time, or another side that does not answer.
func ExitCode(rows []Row) int {
	code := cli.ExitOK
	rank := map[int]int{cli.ExitOK: 0, cli.ExitPeer: 1, cli.ExitFailed: 2, cli.ExitMachine: 3}
	for _, r := range rows {
		this := cli.ExitOK
		switch {
		case r.Status == Fail && (r.Cause == "timeout" || r.Cause == "peer-silent"):
			this = cli.ExitPeer
		case r.Status == Fail && r.Peer:
			this = cli.ExitFailed
		case r.Status == Fail:
			this = cli.ExitMachine
		}
		if rank[this] > rank[code] {
			code = this
		}
	}
	return code
}
