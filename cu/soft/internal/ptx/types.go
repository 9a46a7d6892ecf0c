package ptx

import "fmt"

// kind is what the bits of a type mean.
type kind uint8

const (
	bitsKind kind = iota + 1
	unsigned
	signed
	float
	predicate
)

// A typ is a fundamental type of PTX.
type typ struct {
	kind kind
	size int // bytes; 1 for a predicate
}

var typeNames = map[string]typ{
	"b8": {bitsKind, 1}, "b16": {bitsKind, 2}, "b32": {bitsKind, 4}, "b64": {bitsKind, 8},
	"u8": {unsigned, 1}, "u16": {unsigned, 2}, "u32": {unsigned, 4}, "u64": {unsigned, 8},
	"s8": {signed, 1}, "s16": {signed, 2}, "s32": {signed, 4}, "s64": {signed, 8},
	"f16": {float, 2}, "f32": {float, 4}, "f64": {float, 8},
	"pred": {predicate, 1},
}

// String returns the type's name as in PTX.
func (t typ) String() string {
	if t.kind == predicate {
		return "pred"
	}
	for name, p := range packedNames {
		if p == t {
			return name
		}
	}
	letter := map[kind]string{bitsKind: "b", unsigned: "u", signed: "s", float: "f"}[t.kind]
	return fmt.Sprintf("%s%d", letter, t.size*8)
}

// mask returns a number with as many low bits set as the type is wide; a predicate is one bit wide.
func (t typ) mask() uint64 {
	if t.kind == predicate {
		return 1
	}
	return ^uint64(0) >> (64 - 8*t.size)
}

// A space is where a variable lies.
type space uint8

const (
	generic space = iota
	global
	constant
	shared
	local
	param
)

var spaceNames = map[string]space{
	"global": global, "const": constant, "shared": shared, "local": local, "param": param,
	"shared::cta": shared, "param::entry": param, "param::func": param,
}

// The generic address space has a window for what is not device memory; each
// block and thread sees its own behind it. Device addresses are smaller.
const (
	sharedWindow = uint64(1) << 62
	localWindow  = uint64(1)<<62 | 1<<40
	windowSize   = uint64(1) << 32

	// A kernel's parameters, where their address is asked for.
	paramWindow = uint64(1)<<62 | 2<<40
	// The barrier of a cooperative grid is where the two halves of an address are
	// the same: kernels get them from two registers.
	workspaceWindow = uint64(1)<<60 | uint64(1)<<28
	workspaceSize   = 64
)

// window returns where a space begins in the generic one.
func (s space) window() uint64 {
	switch s {
	case shared:
		return sharedWindow
	case local, param:
		return localWindow
	}
	return 0
}

// holds reports whether a register of the type can be an operand of another: it has
// the size, and integers and floats are not taken for each other.
func (t typ) holds(operand typ) bool {
	apart := t.kind == float && operand.integer() || operand.kind == float && t.integer()
	return t.size == operand.size && !apart && (t.kind == predicate) == (operand.kind == predicate)
}

// integer reports whether the type is one of whole numbers, and not of mere bits.
func (t typ) integer() bool { return t.kind == signed || t.kind == unsigned }

// holdsWide is holds for loads, stores and conversions, where a register of
// integers may be wider than what it is an operand for.
func (t typ) holdsWide(operand typ) bool {
	wide := (t.integer() || t.kind == bitsKind) && (operand.integer() || operand.kind == bitsKind)
	return wide && t.size > operand.size || t.holds(operand)
}
