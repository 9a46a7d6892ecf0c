package launch

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

// A text is refused, or is a number of that many bits that means the same when it
// is written out, or a buffer.
func FuzzArgument(f *testing.F) {
	for _, text := range []string{
		"", ":", "u8", "u8:", "u8:255", "u8:256", "u8:-1", "u8:0xff", "u8:0x-1", "u8:+1", "u16:010", "u32:0x", "u64:18446744073709551615",
		"i8:-0x80", "i8:--1", "i16:-32769", "i32:2147483647", "i64:-9223372036854775808", "i7:1",
		"f32:1e39", "f32:0x1.8p3", "f32:0x10", "f64:nan", "f64:-Inf", "f64:1_0", "f64:", "f16:1", "bf16:0x1.8p3", "f16:65520", "f32:bits:0x7fc00001", "bf16:bits:-1",
		"zero:", "zero:0", "zero:1KiB", "zero:1:", "zero:1:a:b", "in:", "in:a:b", "inout:a", "inout::b", "inout:a:", "inout:a:b:c",
	} {
		f.Add(text)
	}
	bits := map[string]uint64{"u8": 1, "i8": 1, "u16": 2, "i16": 2, "f16": 2, "bf16": 2, "u32": 4, "i32": 4, "f32": 4, "u64": 8, "i64": 8, "f64": 8}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := parseArgument(text)
		switch {
		case err != nil:
			return
		case a.value == nil:
			if a.bytes() != pointerSize || (a.size == 0) == (a.in == "") {
				t.Fatalf("%q: %+v", text, a)
			}
			return
		}
		kind, _, _ := strings.Cut(text, ":")
		if a.bytes() != bits[kind] {
			t.Fatalf("%q has %d bytes", text, a.bytes())
		}
		again, err := parseArgument(fmt.Sprintf("%s:%v", kind, a.value))
		if err != nil || again.value != a.value && !isNaN(a.value) {
			t.Fatalf("%q is %v, and that is %v: %v", text, a.value, again, err)
		}
	})
}

func isNaN(v any) bool {
	switch v := v.(type) {
	case float32:
		return math.IsNaN(float64(v))
	case float64:
		return math.IsNaN(v)
	}
	return false
}
