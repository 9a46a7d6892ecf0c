package state

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpufd/gpufd/internal/plain"
)

// A Code is the kind of an [Error]. Programs go by it.
type Code string

// The codes.
const (
	BadRequest    Code = "bad-request" // what was asked for makes no sense
	Denied        Code = "denied"      // the policy does not allow it
	NotFound      Code = "not-found"   // no such name, version, part, ticket or holder
	Conflict      Code = "conflict"    // another version is current than was expected, or parts disagree
	Taken         Code = "taken"       // somebody else has booked the part
	Quota         Code = "quota"       // there is no room for it
	Draining      Code = "draining"    // the name or device is to be freed
	IsDamaged     Code = "damaged"
	IsQuarantined Code = "quarantined"
	Expired       Code = "expired" // the deadline has passed
)

// An Error says what was not done, why, and what to do.
type Error struct {
	Code    Code     `json:"code"`
	Message string   `json:"message"`
	Holders []Holder `json:"holders,omitempty"` // the processes in the way, 16 at most

	// Changed reports that the state has changed nevertheless: a commit that failed has
	// dropped its transaction. The caller swaps the state in as if there were no error.
	Changed bool `json:"-"`
}

// Error returns the message. It may come from a keeper of another user, and what could harm a
// terminal is escaped.
func (e *Error) Error() string {
	if e == nil {
		return ""
	}
	return plain.Text(e.Message)
}

// CodeOf returns the code of an [Error] in err, "" if there is none.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) && e != nil {
		return e.Code
	}
	return ""
}

// fail makes an Error.
func fail(c Code, format string, a ...any) *Error {
	return &Error{Code: c, Message: fmt.Sprintf(format, a...)}
}

// maxNamed bounds the holders that an Error names.
const maxNamed = 16

// because adds the processes that are in the way, each once.
func (e *Error) because(holders ...Holder) *Error {
	for _, h := range holders {
		if len(e.Holders) == maxNamed {
			break
		}
		if !slices.ContainsFunc(e.Holders, h.SameProcess) {
			e.Holders = append(e.Holders, h)
		}
	}
	return e
}
