package weights

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/gpufd/gpufd/internal/safetensors"
)

const (
	maxNesting = 64 // of lists and objects
	maxNumber  = 64 // characters
)

// strict checks what the decoders of languages do not agree on, in members that are not known, too: nesting, long
// numbers, and members that come twice. The error may be nil for a text that is no JSON.
func strict(text []byte) error {
	c := checker{json.NewDecoder(bytes.NewReader(text)), text}
	c.d.UseNumber()
	err := c.value(0)
	if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

type checker struct {
	d    *json.Decoder
	text []byte
}

// value checks a value inside that many lists and objects.
func (c *checker) value(within int) error {
	t, err := c.d.Token()
	if err != nil {
		return err
	}
	switch t := t.(type) {
	case json.Number:
		if len(t) > maxNumber {
			return fmt.Errorf("a number of %d characters; want %d at most", len(t), maxNumber)
		}
	case json.Delim:
		if within == maxNesting {
			return fmt.Errorf("lists and objects in more than %d others", maxNesting-1)
		}
		return c.inside(t == '{', within+1)
	}
	return nil
}

// inside checks a list or an object up to its end.
func (c *checker) inside(object bool, within int) error {
	var names map[string]struct{}
	for c.d.More() {
		if object {
			name, err := c.name()
			if err != nil {
				return err
			}
			if names == nil {
				names = map[string]struct{}{}
			}
			if _, twice := names[name]; twice {
				return fmt.Errorf("member %s comes twice in an object", safetensors.Quote(name))
			}
			names[name] = struct{}{}
		}
		if err := c.value(within); err != nil {
			return err
		}
	}
	_, err := c.d.Token()
	return err
}

// name reads the name of a member.
func (c *checker) name() (string, error) {
	begin := c.d.InputOffset()
	t, err := c.d.Token()
	if err != nil {
		return "", err
	}
	name, _ := t.(string)
	return name, safetensors.CheckEscapes(c.text[begin:c.d.InputOffset()])
}
