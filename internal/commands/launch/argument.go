package launch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
)

// argumentHelp is the help for the arguments.
const argumentHelp = `
Arguments of the kernel, in its order:
  u8: u16: u32: u64: i8: i16: i32: i64: VALUE   a whole number, decimal or 0x
  f16: bf16: f32: f64: VALUE                    a number such as 2, -1e-3, 0x1.8p3, inf or nan,
                                                rounded to what the type can hold
  f16: bf16: f32: f64: bits:VALUE               a number given by its bits: f32:bits:0x3f800000
                                                is 1, while f32:0x10 is 16
  zero:SIZE[:OUTFILE]                           a buffer of SIZE zero bytes, with units KiB, MiB, GiB
  in:FILE                                       a buffer with a file's bytes
  inout:FILE:OUTFILE                            the same; FILE has no colon in its name
After the kernel has succeeded, launch writes the buffer to OUTFILE, which it
replaces. A struct cannot be passed by value. For example:
  launch --list
  launch --builtin vector --kernel saxpy --grid 4 --block 256 f32:2 in:x inout:y:out u64:1000
`

// argumentKinds are what arguments begin with.
var argumentKinds = []string{"u8:", "u16:", "u32:", "u64:", "i8:", "i16:", "i32:", "i64:", "f16:", "bf16:", "f32:", "f64:", "zero:", "in:", "inout:"}

// completeArgument completes an argument's kind, and behind in: and inout: the name of a file.
func completeArgument(_ *cobra.Command, _ []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
	kind, path, ok := strings.Cut(word, ":")
	if !ok {
		return argumentKinds, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
	}
	var files []cobra.Completion
	if kind == "in" || kind == "inout" {
		files, _ = filepath.Glob(path + "*")
	}
	for i, f := range files {
		files[i] = kind + ":" + f
	}
	return files, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
}

// An argument is one argument of the kernel: a number, or a buffer.
type argument struct {
	text    string // as it was given
	value   any    // a number; nil of a buffer
	size    uint64 // of a buffer; of in and inout once its file is open
	in, out string // names of files, or none

	file *os.File // in, opened
	mem  *cu.Memory
}

// pointerSize is the size in bytes of a buffer as an argument: that of its address.
const pointerSize = 8

// bytes is how many bytes of parameters the argument takes.
func (a *argument) bytes() uint64 {
	if a.value == nil {
		return pointerSize
	}
	return uint64(binary.Size(a.value))
}

// given is what the kernel is given.
func (a *argument) given() any {
	switch v := a.value.(type) {
	case nil:
		return a.mem
	case half:
		return uint16(v)
	case bfloat:
		return uint16(v)
	}
	return a.value
}

// flagBehind returns the first flag among the arguments of the kernel, or nothing.
func flagBehind(texts []string) string {
	i := slices.IndexFunc(texts, func(text string) bool { return strings.HasPrefix(text, "-") })
	if i < 0 {
		return ""
	}
	return texts[i]
}

// parseArguments reads all arguments.
func parseArguments(texts []string) ([]*argument, error) {
	var all []*argument
	outputs := map[string]bool{}
	for i, text := range texts {
		a, err := parseArgument(text)
		if err != nil {
			return nil, cli.Usagef("argument %d, %q: %w", i+1, text, err)
		}
		if a.out != "" && outputs[a.out] {
			return nil, cli.Usagef("argument %d, %q: another argument is written to %s, too", i+1, text, a.out)
		}
		outputs[a.out] = true
		all = append(all, a)
	}
	return all, nil
}

var errArgument = errors.New("want u8: to u64:, i8: to i64:, f16:, bf16:, f32: or f64: and a number, zero:SIZE[:OUTFILE], in:FILE or inout:FILE:OUTFILE")

func parseArgument(text string) (*argument, error) {
	a := &argument{text: text}
	kind, rest, ok := strings.Cut(text, ":")
	if !ok {
		return nil, errArgument
	}
	var err error
	switch kind {
	case "zero":
		err = a.parseZero(rest)
	case "in":
		a.in, err = rest, needName("FILE", rest)
	case "inout":
		a.in, a.out, _ = strings.Cut(rest, ":")
		err = errors.Join(needName("FILE", a.in), needName("OUTFILE", a.out))
	default:
		a.value, err = parseNumber(kind, rest)
	}
	return a, err
}

func (a *argument) parseZero(text string) error {
	size, out, writes := strings.Cut(text, ":")
	if err := (*cli.Size)(&a.size).Set(size); err != nil {
		return fmt.Errorf("SIZE: %w", err)
	}
	a.out = out
	if writes {
		return needName("OUTFILE", out)
	}
	return nil
}

func needName(what, name string) error {
	if name == "" {
		return fmt.Errorf("want the name of %s", what)
	}
	return nil
}

// wholeNumbers are the types of whole numbers.
var wholeNumbers = map[string]reflect.Type{
	"u8": reflect.TypeFor[uint8](), "u16": reflect.TypeFor[uint16](), "u32": reflect.TypeFor[uint32](), "u64": reflect.TypeFor[uint64](),
	"i8": reflect.TypeFor[int8](), "i16": reflect.TypeFor[int16](), "i32": reflect.TypeFor[int32](), "i64": reflect.TypeFor[int64](),
}

// parseNumber reads a number of that kind.
func parseNumber(kind, text string) (any, error) {
	if _, ok := formats[kind]; ok {
		return parseFloat(kind, text)
	}
	t, ok := wholeNumbers[kind]
	if !ok {
		return nil, errArgument
	}
	digits, base := inBase(text)
	v := reflect.New(t).Elem()
	if v.CanUint() {
		n, err := strconv.ParseUint(digits, base, t.Bits())
		if err != nil {
			return nil, fmt.Errorf("want a whole number from 0 to %d, decimal or 0x", uint64(math.MaxUint64)>>(64-t.Bits()))
		}
		v.SetUint(n)
		return v.Interface(), nil
	}
	n, err := strconv.ParseInt(digits, base, t.Bits())
	if err != nil {
		most := int64(math.MaxInt64) >> (64 - t.Bits())
		return nil, fmt.Errorf("want a whole number from %d to %d, decimal or 0x", -most-1, most)
	}
	v.SetInt(n)
	return v.Interface(), nil
}

// inBase takes 0x away from a number's digits: 010 is ten.
func inBase(text string) (digits string, base int) {
	sign, number := "", text
	if text != "" && (text[0] == '-' || text[0] == '+') {
		sign, number = text[:1], text[1:]
	}
	if !isHex(number) {
		return text, 10
	}
	if number = number[2:]; number == "" || number[0] == '-' || number[0] == '+' {
		return "", 16 // a sign belongs before 0x
	}
	return sign + number, 16
}

func isHex(number string) bool {
	return strings.HasPrefix(number, "0x") || strings.HasPrefix(number, "0X")
}
