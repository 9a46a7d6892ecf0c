package kernels

import (
	_ "embed" // the PTX

	"github.com/gpufd/gpufd/kernels/digest"
)

// The PTX, for [cu.Context.LoadModule].
var (
	//go:embed pattern.ptx
	Pattern string // pattern_fill, pattern_check
	//go:embed memory.ptx
	Memory string // fill_bytes, copy_bytes, checksum
	//go:embed vector.ptx
	Vector string // vector_add, saxpy
)

// A Builtin is one module of kernels.
type Builtin struct {
	Name    string // pattern, memory, digest or vector
	PTX     string
	Kernels []Kernel
}

// A Kernel is one kernel of a module. All take a grid and a block of one
// dimension and any size.
type Kernel struct {
	Name   string
	Does   string // in a few words
	Params []Param
}

// A Param is a parameter of a kernel. Its type is u8, u32, u64, f32 or ptr, an
// address of 64 bits.
type Param struct{ Name, Type string }

// Builtins lists the modules. The caller owns the slice.
func Builtins() []Builtin {
	return []Builtin{
		{"pattern", Pattern, []Kernel{
			{"pattern_fill", "writes the pattern, from the integer at index first on; dst is aligned to 16",
				[]Param{{"dst", "ptr"}, {"bytes", "u64"}, {"first", "u64"}, {"salt", "u32"}}},
			{"pattern_check", "compares with the pattern; adds how many integers are wrong to the u64 at result, and puts the least index of one into the next; src is aligned to 16",
				[]Param{{"src", "ptr"}, {"bytes", "u64"}, {"first", "u64"}, {"salt", "u32"}, {"result", "ptr"}}},
		}},
		{"memory", Memory, []Kernel{
			{"fill_bytes", "sets bytes",
				[]Param{{"dst", "ptr"}, {"bytes", "u64"}, {"value", "u8"}}},
			{"copy_bytes", "copies bytes that do not overlap; both addresses are aligned to 16",
				[]Param{{"dst", "ptr"}, {"src", "ptr"}, {"bytes", "u64"}}},
			{"checksum", "adds the checksum to the u64 at sum; src is aligned to 8",
				[]Param{{"src", "ptr"}, {"bytes", "u64"}, {"sum", "ptr"}}},
		}},
		{"digest", digest.PTX, []Kernel{
			{"digest", "adds the sums of a digest to the two u64 at result; src is aligned to 16 and begins with the word at index first",
				[]Param{{"src", "ptr"}, {"bytes", "u64"}, {"first", "u64"}, {"result", "ptr"}}},
		}},
		{"vector", Vector, []Kernel{
			{"vector_add", "c = a + b, of n float32",
				[]Param{{"a", "ptr"}, {"b", "ptr"}, {"c", "ptr"}, {"n", "u64"}}},
			{"saxpy", "y = a x + y, of n float32, rounded once",
				[]Param{{"a", "f32"}, {"x", "ptr"}, {"y", "ptr"}, {"n", "u64"}}},
		}},
	}
}
