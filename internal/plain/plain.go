// Package plain makes text for people: it counts things in words, says why a context ended, and
// makes texts of strangers, such as a peer's words or the name of a file, safe to print. On a
// terminal these could otherwise hide what stands beside them, or pretend to be it.
package plain

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text returns s with everything escaped that has no shape of its own: control characters, those
// that turn the direction of what follows, ends of lines, and bytes that are not UTF-8.
func Text(s string) string { return escaped(s, "") }

// Lines is Text, but the ends of lines and tabs stay.
func Lines(s string) string { return escaped(s, "\n\t") }

func escaped(s, except string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !isPlain(r, except) }) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case isPlain(r, except):
			b.WriteRune(r)
		case r < utf8.RuneSelf:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
		s = s[n:]
	}
	return b.String()
}

// isPlain reports whether r can be printed as it is.
func isPlain(r rune, except string) bool {
	return unicode.IsGraphic(r) || strings.ContainsRune(except, r)
}

// JSON escapes in JSON what json.Marshal leaves alone and Text would escape. The value stays the
// same.
func JSON(text []byte) []byte {
	if bytes.ContainsFunc(text, harmsJSON) {
		return escapedJSON(string(text))
	}
	return text
}

// harmsJSON reports whether c is a character that json.Marshal leaves alone and Text does not.
func harmsJSON(c rune) bool { return c > '~' && !unicode.IsGraphic(c) }

func escapedJSON(text string) (b []byte) {
	for _, c := range text {
		switch {
		case !harmsJSON(c):
			b = utf8.AppendRune(b, c)
		case c <= 0xffff:
			b = fmt.Appendf(b, `\u%04x`, c)
		default: // as two halves
			c -= 0x10000
			b = fmt.Appendf(b, `\u%04x\u%04x`, 0xd800+c>>10, 0xdc00+c&0x3ff)
		}
	}
	return b
}

// Count returns n things in words: "1 process", "2 processes".
func Count[N int | uint64](n N, thing string) string {
	switch {
	case n == 1:
		return "1 " + thing
	case strings.HasSuffix(thing, "s"):
		thing += "e"
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// List returns what values say, one after the other.
func List[T fmt.Stringer](all []T) string {
	texts := make([]string, len(all))
	for i, v := range all {
		texts[i] = v.String()
	}
	return strings.Join(texts, "; ")
}

type errorOf struct {
	text string
	of   error
}

// ErrorOf returns an error with that text, which matches another one as well.
func ErrorOf(text string, of error) error { return &errorOf{text, of} }

func (e *errorOf) Error() string        { return e.text }
func (e *errorOf) Is(target error) bool { return target == e.of }
