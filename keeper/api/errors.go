package api

import "github.com/gpufd/gpufd/internal/plain"

// A Code is the kind of an [Error]. Programs go by it.
type Code string

// The codes.
const (
	BadRequest    Code = "bad-request"  // what was asked for makes no sense
	Denied        Code = "denied"       // the policy does not allow it
	NotFound      Code = "not-found"    // no such name, version, part, ticket or holder
	Conflict      Code = "conflict"     // another version is current than was expected, or parts disagree
	Taken         Code = "taken"        // somebody else has booked the part
	Quota         Code = "quota"        // there is no room for it
	Draining      Code = "draining"     // the name or device is to be freed
	IsDamaged     Code = "damaged"      // what is kept failed its check
	IsQuarantined Code = "quarantined"  // somebody has withdrawn it
	Expired       Code = "expired"      // the deadline has passed
	TooLarge      Code = "too-large"    // a device is smaller than what is to be on it
	NoRoom        Code = "no-room"      // a device, or the pool for parking, has no room
	StoreSilent   Code = "store-silent" // the fd store does not answer, and nothing was changed
	Unknown       Code = "unknown"      // the fd store does not answer, and the change may have been made
	StoreLost     Code = "store-lost"   // the fd store has gone, and what it held with it
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
