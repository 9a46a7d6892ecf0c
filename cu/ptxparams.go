package cu

import (
	"bytes"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// maxPTX bounds how much of a file is read for its types.
const maxPTX = 64 << 20

// ptxParamsOf is [ptxParams] of a file. One that cannot be read is for the driver to refuse.
func ptxParamsOf(path string) map[string][]string {
	if info, err := os.Stat(path); err != nil || info.Size() > maxPTX {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return ptxParams(text)
}

// entryHead is a kernel's name and its parameters.
var (
	entryHead = regexp.MustCompile(`\.entry\s+([\w$%]+)\s*(?:\(([^)]*)\))?`)
	paramType = regexp.MustCompile(`\.([usbf]\d+)\b`)
)

// ptxParams returns the types of each kernel's parameters as PTX spells them, such as "f32". A type is
// "" where the parameter is no single number. The driver knows only sizes.
func ptxParams(image []byte) map[string][]string {
	text := bytes.TrimRight(image, "\x00")
	if bytes.IndexByte(text, 0) >= 0 {
		return nil // machine code
	}
	all := map[string][]string{}
	for _, m := range entryHead.FindAllSubmatch(withoutComments(text), -1) {
		types := []string{}
		for p := range strings.SplitSeq(strings.TrimSpace(string(m[2])), ",") {
			switch t := paramType.FindStringSubmatch(p); {
			case p == "":
			case t == nil || strings.Contains(p, "["):
				types = append(types, "")
			default:
				types = append(types, t[1])
			}
		}
		all[string(m[1])] = types
	}
	return all
}

// withoutComments returns PTX with a space for each comment and string.
func withoutComments(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for {
		i := bytes.IndexAny(text, `/"`)
		if i < 0 {
			return append(out, text...)
		}
		out, text = append(out, text[:i]...), text[i:]
		end := "\n"
		switch {
		case text[0] == '"':
			end = `"`
		case bytes.HasPrefix(text, []byte("/*")):
			end = "*/"
		case !bytes.HasPrefix(text, []byte("//")):
			out, text = append(out, text[0]), text[1:]
			continue
		}
		n := min(len(text), 2)
		if end == `"` {
			n = 1
		}
		_, text, _ = bytes.Cut(text[n:], []byte(end))
		out = append(out, ' ')
	}
}

// ParamTypes returns the types of the kernel's parameters as PTX spells them, such as "f32" or "u64", if
// the code was loaded as PTX, and else nil. A type is "" where the parameter is a struct or an array.
// The caller owns the slice.
func (f *Function) ParamTypes() []string {
	if f == nil {
		return nil
	}
	return slices.Clone(f.types[f.name])
}

// misfits says why a value of kind k cannot be parameter i by the types of PTX, or "". It would be
// taken for another number: 1 for 1.4e-45. Types without a meaning, such as b32, take either.
func (f *Function) misfits(i int, k reflect.Kind) string {
	types := f.types[f.name]
	if i >= len(types) || !isNumber(k) {
		return ""
	}
	float := k == reflect.Float32 || k == reflect.Float64
	switch t := types[i]; {
	case (t == "f32" || t == "f64") && !float:
		return fmt.Sprintf("the parameter is a float (%s); pass a float%s, such as math.Float%sfrombits of its bits", t, t[1:], t[1:])
	case (strings.HasPrefix(t, "u") || strings.HasPrefix(t, "s")) && float:
		return fmt.Sprintf("the parameter is a whole number (%s); pass one, such as an int%s or uint%s", t, t[1:], t[1:])
	}
	return ""
}
