package fdstore

import (
	"errors"
	"fmt"
)

// The reasons for which a store refuses a request. It has changed nothing then.
var (
	// ErrMalformed: a record that is none of the protocol's.
	ErrMalformed = errors.New("malformed record")

	// ErrUnknown: there is no set with this id.
	ErrUnknown = errors.New("no such set")

	// ErrHeld: there is a set with this id already.
	ErrHeld = errors.New("the id has a set already")

	// ErrManifest: what came is no manifest: not one memfd with the four seals, or longer
	// than MaxManifest.
	ErrManifest = errors.New("not a sealed manifest")

	// ErrFull: the set does not fit the descriptors that the store may have open.
	ErrFull = errors.New("the store is out of descriptors")

	// ErrBusy: another keeper has the store.
	ErrBusy = errors.New("another keeper has the store")

	// ErrOrder: a part of a set that does not follow the part before.
	ErrOrder = errors.New("part of a set out of order")
)

// ErrSize says that a set for Hold has no descriptor, or more than MaxSet.
var ErrSize = errors.New("a set has 1 to 4096 descriptors")

// code is an error on the wire.
type code uint32

var codes = []error{1: ErrMalformed, ErrUnknown, ErrHeld, ErrManifest, ErrFull, ErrBusy, ErrOrder}

// codeOf returns the code of err, malformed if it has none.
func codeOf(err error) code {
	for c, sentinel := range codes {
		if sentinel != nil && errors.Is(err, sentinel) {
			return code(c)
		}
	}
	return 1
}

// refusal returns the error that an answer stands for, or nil. text begins with the
// sentinel's words, as the store wrote it.
func refusal(h header, text []byte) error {
	if h.code == 0 {
		return nil
	}
	if int(h.code) >= len(codes) {
		return fmt.Errorf("refused with code %d: %s", h.code, text)
	}
	return &refusedError{codes[h.code], string(text)}
}

// refusedError has the store's words and matches the sentinel.
type refusedError struct {
	sentinel error
	text     string
}

func (e *refusedError) Error() string { return e.text }
func (e *refusedError) Unwrap() error { return e.sentinel }
