package safetensors

import (
	"bytes"
	"errors"
	"strconv"
)

// errHalfPair says that a text is no text: Go's decoder would make other characters of it,
// and so the same name of two.
var errHalfPair = errors.New("half a surrogate pair, which is no character")

// CheckEscapes finds an escape of JSON that is half of a surrogate pair, and has no UTF-8.
func CheckEscapes(text []byte) error {
	for {
		at := bytes.IndexByte(text, '\\')
		if at < 0 || at+1 == len(text) {
			return nil
		}
		text = text[at:]
		switch unit := escaped(text); {
		case unit>>10 == 0xd800>>10 && escaped(text[6:])>>10 == 0xdc00>>10:
			text = text[12:]
		case unit>>11 == 0xd800>>11:
			return errHalfPair
		default:
			text = text[2:]
		}
	}
}

// escaped is the number that text begins with as \uXXXX, or 0.
func escaped(text []byte) uint64 {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return 0
	}
	n, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	if err != nil {
		return 0
	}
	return n
}
