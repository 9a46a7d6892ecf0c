package ptx

import (
	"fmt"
	"strings"
)

// An Error says what is wrong with a module, and where.
type Error struct {
	Line  int
	Text  string
	Newer bool // the module needs a newer version of PTX than is known
}

// Error names the line.
func (e *Error) Error() string { return fmt.Sprintf("ptx: line %d: %s", e.Line, e.Text) }

// maxText is how much an error quotes.
const maxText = 400

func errorf(line int, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if len(text) > maxText {
		text = text[:maxText/2] + " … " + text[len(text)-maxText/2:]
	}
	return &Error{Line: line, Text: text}
}

// failIf panics with an error, which parse recovers, if what a line says is bad.
func failIf(bad bool, line int, format string, args ...any) {
	if bad {
		panic(errorf(line, format, args...))
	}
}

// A token is a word (which a directive, a register or an opcode with its dots is
// too), a number, a string with its quotes, or one character of punctuation.
type token struct {
	text string
	line int
}

// String quotes the token, or says that the text is over.
func (t token) String() string {
	if t.text == "" {
		return "end of the text"
	}
	return fmt.Sprintf("%q", t.text)
}

// is reports whether the token is that text; the token past the end is none.
func (t token) is(s string) bool { return t.text == s }

// isWord reports whether the token begins like a name, a directive or a register.
func (t token) isWord() bool { return t.text != "" && isWordStart(t.text[0]) }

// isName reports whether the token can name something: no directive.
func (t token) isName() bool { return t.isWord() && t.text[0] != '.' }

func (t token) isString() bool { return strings.HasPrefix(t.text, `"`) }

func (t token) isNumber() bool { return t.text != "" && isDigit(t.text[0]) }

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func isWordStart(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c == '$' || c == '%' || c == '.'
}

func isWordPart(c byte) bool { return isWordStart(c) || isDigit(c) }

// A lexer cuts text into tokens, one at a time, and leaves comments out.
type lexer struct {
	text string
	at   int
	line int
	err  error // what is wrong with the text: it ends there
}

// skip goes past blanks and comments.
func (l *lexer) skip() {
	for l.at < len(l.text) {
		rest := l.text[l.at:]
		switch {
		case rest[0] == '\n':
			l.line++
			l.at++
		case rest[0] == ' ', rest[0] == '\t', rest[0] == '\r':
			l.at++
		case strings.HasPrefix(rest, "//"):
			n := strings.IndexByte(rest, '\n')
			if n < 0 {
				n = len(rest)
			}
			l.at += n
		case strings.HasPrefix(rest, "/*"):
			n := strings.Index(rest, "*/")
			if n < 0 {
				l.fail("a comment without an end")
				return
			}
			l.line += strings.Count(rest[:n], "\n")
			l.at += n + 2
		default:
			return
		}
	}
}

// next takes one token; ok is false at the end.
func (l *lexer) next() (t token, ok bool) {
	if l.skip(); l.at >= len(l.text) {
		return t, false
	}
	rest := l.text[l.at:]
	n := 1
	switch c := rest[0]; {
	case c == '"':
		end := strings.IndexAny(rest[1:], "\"\n")
		if end < 0 || rest[1+end] == '\n' {
			return t, l.fail("a string without an end")
		}
		n = end + 2
	case c == '.': // directives may follow each other without a blank: .reg.b32
		n = wordLength(rest)
		if next := strings.IndexByte(rest[1:n], '.'); next >= 0 {
			n = 1 + next
		}
	case isWordStart(c), isDigit(c): // numbers have letters, too
		n = wordLength(rest)
	case strings.IndexByte(",;{}[]()<>@!+-|=:", c) < 0:
		return t, l.fail("unexpected character %q", c)
	}
	l.at += n
	return token{rest[:n], l.line}, true
}

// fail ends the text.
func (l *lexer) fail(format string, args ...any) bool {
	l.err = errorf(l.line, format, args...)
	l.at = len(l.text)
	return false
}

// wordLength returns how much of s is one word. Two colons within a word belong to
// it, as in .L1::evict_last.
func wordLength(s string) int {
	n := 0
	for n < len(s) {
		switch {
		case isWordPart(s[n]):
			n++
		case strings.HasPrefix(s[n:], "::") && n+2 < len(s) && isWordPart(s[n+2]):
			n += 2
		default:
			return n
		}
	}
	return n
}
