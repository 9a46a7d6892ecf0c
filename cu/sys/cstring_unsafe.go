package sys

import (
	"strconv"
	"unsafe"
)

// maxTracedString limits what trace prints of a C string.
const maxTracedString = 128

// cString quotes the C string at address x for trace.
func cString(x uintptr) string {
	if x == 0 {
		return "0"
	}
	s := GoString(*(**byte)(unsafe.Pointer(&x)), maxTracedString)
	if len(s) == maxTracedString {
		return strconv.Quote(s) + "…"
	}
	return strconv.Quote(s)
}

// GoString copies the C string at p, at most limit bytes of it. A nil p gives
// the empty string.
func GoString(p *byte, limit int) string {
	if p == nil {
		return ""
	}
	n := 0
	for n < limit && *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(p, n))
}

// CString returns s as a C string on the Go heap: bytes that end in a zero. C
// stops at a zero byte inside s.
func CString(s string) *byte {
	b := append([]byte(s), 0)
	return &b[0]
}
