package sys

import (
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// placements says where the ABIs want arguments: w is a word, f a float, sN a
// struct of N bytes by value. In the answers 2 is the second argument, 2.0 the
// first word of the second argument, 2.0-7 eight of its words, &2 the address
// of a copy, - what nobody may count on; the stack follows the bar.
var placements = []struct{ name, args, amd64, arm64 string }{
	{"a small struct goes as a word does", "w s8 w", "1 2.0 3", "1 2.0 3"},
	{"four bytes are a word", "s4 w", "1.0 2", "1.0 2"},
	{"twelve bytes are two words", "s12 w", "1.0-1 2", "1.0-1 2"},
	{"sixteen bytes are two words", "w s16 w", "1 2.0-1 3", "1 2.0-1 3"},
	{"sixteen bytes fill the last registers of amd64", "w w w w s16 w", "1 2 3 4 5.0-1 | 6", "1 2 3 4 5.0-1 6"},
	{
		"a struct is not split between one register and the stack", "w w w w w s16 w",
		"1 2 3 4 5 7 | 6.0-1", "1 2 3 4 5 6.0-1 7",
	},
	{
		"on arm64 a struct that does not fit closes the registers", "w w w w w w w s16 w",
		"1 2 3 4 5 6 | 7 8.0-1 9", "1 2 3 4 5 6 7 - | 8.0-1 9",
	},
	{"a large struct first", "s24 w", "2 | 1.0-2", "&1 2"},
	{"the shape of cuIpcOpenMemHandle", "w s64 w", "1 3 | 2.0-7", "1 &2 3"},
	{
		"a large struct behind full registers", "w w w w w w w w s64 w",
		"1 2 3 4 5 6 | 7 8 9.0-7 10", "1 2 3 4 5 6 7 8 | &9 10",
	},
	{"two large structs", "s64 w s24 w", "2 4 | 1.0-7 3.0-2", "&1 2 &3 4"},
	{"a struct as large as the room on amd64", "s128 w", "2 | 1.0-15", "&1 2"},
	{"one word more", "s136 w", "2 | 1.0-16", "&1 2"},
	{"words beyond the room", "s128 w w w w w w w w w", "2 3 4 5 6 7 | 1.0-15 8 9 10", "&1 2 3 4 5 6 7 8 | 9 10"},
	{"a second struct beyond the room", "s104 w s104 w", "2 4 | 1.0-12 3.0-12", "&1 2 &3 4"},
	{"far more than there is room for", "w s400 w s480", "1 3 | 2.0-49 4.0-59", "1 &2 3 &4"},
	{
		"sixteen words", "w w w w w w w w w w w w w w w w",
		"1 2 3 4 5 6 | 7 8 9 10 11 12 13 14 15 16", "1 2 3 4 5 6 7 8 | 9 10 11 12 13 14 15 16",
	},
	{"floats have registers of their own", "w f w f w", "1 3 5", "1 3 5"},
	{"a float among structs", "f s64 s8 f", "3.0 | 2.0-7", "&2 3.0"},
}

func TestArgumentsAreWhereTheABIWantsThem(t *testing.T) {
	for _, tt := range placements {
		t.Run(tt.name, func(t *testing.T) {
			args := strings.Fields(tt.args)
			want := map[string]string{"amd64": tt.amd64, "arm64": tt.arm64}[runtime.GOARCH]
			registers, stack, _ := strings.Cut(want, "|")
			regs, onStack := expand(registers), expand(stack)
			for len(regs) < numRegs {
				regs = append(regs, "-")
			}

			calls := 0
			fn := newCFunc(t, rawShape(len(onStack)), func(raw []reflect.Value) uintptr {
				calls++
				runtime.GC()
				requireFloats(t, args, raw)
				for i, name := range append(regs, onStack...) {
					requirePlaced(t, args, name, uintptr(raw[2+i].Uint()))
				}
				return garbage | 3
			})
			c := library(map[string]uintptr{
				someSymbol: fn,
				bindSymbol: wordFunc(t, 1, func([]uintptr) uintptr { return 0 }),
			}).Caller()

			require.Equal(t, CUresult(3), place(c, args))
			require.Equal(t, CUresult(3), place(c.With(1), args), "with a context")
			require.Equal(t, 2, calls)
		})
	}
}

// rawShape is the shape of a function that sees two float registers, every
// integer register and n words of the stack.
func rawShape(n int) []reflect.Type {
	shape := []reflect.Type{reflect.TypeFor[float32](), reflect.TypeFor[float32]()}
	for range numRegs + n {
		shape = append(shape, reflect.TypeFor[uintptr]())
	}
	return shape
}

// place makes a call as generated methods do, with words, floats and structs
// whose contents placedWord and placedFloat know.
func place(c Caller, args []string) CUresult {
	p := newPlaced()
	for i, a := range args {
		size := 0
		fmt.Sscanf(a, "s%d", &size)
		switch {
		case a == "f":
			p.placeFloat(placedFloat(i))
		case size > 0:
			b := structBytes(i, size)
			p.placeValue(unsafe.Pointer(&b[0]), uintptr(size))
		default:
			p.placeWord(placedWord(i, 0))
		}
	}
	return c.callPlaced(p, someFunction)
}

func placedFloat(i int) float32 { return float32(i) + 0.375 }

// placedWord is word j of argument i, counting from 0.
func placedWord(i, j int) uintptr { return uintptr(0xcafe000000000000 + uint64(i+1)<<32 + uint64(j+1)) }

// structBytes is the struct of size bytes that is argument i, cut out of
// longer memory that a careless reader would show.
func structBytes(i, size int) []byte {
	w := make([]uintptr, size/8+2)
	for j := range w {
		w[j] = placedWord(i, j)
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&w[0])), size)
}

// expand spells "1 2.0-3" out as 1, 2.0, 2.1, 2.2, 2.3.
func expand(s string) []string {
	var names []string
	for _, field := range strings.Fields(s) {
		var arg, first, last int
		if n, _ := fmt.Sscanf(field, "%d.%d-%d", &arg, &first, &last); n != 3 {
			names = append(names, field)
			continue
		}
		for j := first; j <= last; j++ {
			names = append(names, fmt.Sprintf("%d.%d", arg, j))
		}
	}
	return names
}

// requirePlaced checks that the word x is what name says.
func requirePlaced(t *testing.T, args []string, name string, x uintptr) {
	var arg, word, size int
	switch {
	case name == "-":
		return
	case strings.HasPrefix(name, "&"):
		fmt.Sscanf(name, "&%d", &arg)
		fmt.Sscanf(args[arg-1], "s%d", &size)
		require.Equal(t, structBytes(arg-1, size), unsafe.Slice(at[byte](x), size), name)
		return
	}
	fmt.Sscanf(name, "%d.%d", &arg, &word)
	fmt.Sscanf(args[arg-1], "s%d", &size)
	want := placedWord(arg-1, word)
	if rest := size - 8*word; size > 0 && rest < 8 {
		want &= 1<<(8*rest) - 1
	}
	require.Equal(t, fmt.Sprintf("%#x", want), fmt.Sprintf("%#x", x), name)
}

func requireFloats(t *testing.T, args []string, raw []reflect.Value) {
	n := 0
	for i, a := range args {
		if a == "f" {
			require.Equal(t, placedFloat(i), float32(raw[n].Float()), "float %d", n)
			n++
		}
	}
}

// The C compiler's own view of two of the shapes.

func TestLibmReadsTheFloat(t *testing.T) {
	r, err := OpenFile("libm.so.6")
	require.NoError(t, err)
	lroundf, err := r("lroundf")
	require.NoError(t, err)
	c := library(map[string]uintptr{"cuTexRefSetMipmapLevelBias": lroundf}).Caller()

	require.Equal(t, CUresult(1235), c.CuTexRefSetMipmapLevelBias(99, 1234.6))
	require.Equal(t, -8, int(int32(c.CuTexRefSetMipmapLevelBias(0, -7.75))))
}

func TestLibcReadsTheStruct(t *testing.T) {
	address := [4]byte{192, 0, 2, 33} // a struct in_addr
	for function, want := range map[string]CUresult{"inet_netof": 192<<16 | 2, "inet_lnaof": 33} {
		c := libcLibrary(t, map[string]string{someSymbol: function}).Caller()
		p := newPlaced()
		p.placeValue(unsafe.Pointer(&address), 4)
		require.Equal(t, want, c.callPlaced(p, someFunction), function)
	}
}
