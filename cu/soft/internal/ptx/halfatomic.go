package ptx

// A halfType is one of the small floats that atomics add, or a pair of them.
type halfType struct {
	layout *layout
	size   int // bytes
}

var halfTypes = map[string]halfType{
	"f16": {half, 2}, "bf16": {brain, 2}, "f16x2": {half, 4}, "bf16x2": {brain, 4},
}

// takeHalf takes the type and .noftz.
func (o *opcode) takeHalf() bool {
	if !o.take("f16", "bf16", "f16x2", "bf16x2") {
		o.used = len(o.types)
	}
	return o.take("noftz")
}

// add is one addition, or that of both halves of a word.
func (h halfType) add(old, a, _ uint64) uint64 {
	low := h.layout.add(old&0xffff, a&0xffff, toEven)
	if h.size == 2 {
		return low
	}
	return h.layout.add(old>>16&0xffff, a>>16&0xffff, toEven)<<16 | low
}
