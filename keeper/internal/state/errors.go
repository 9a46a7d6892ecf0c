package state

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpufd/gpufd/keeper/api"
)

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

// because adds the processes that are in the way to e, each once.
func because(e *Error, holders ...api.Holder) *Error {
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
