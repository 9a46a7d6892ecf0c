package launch

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNumbers(t *testing.T) {
	for text, want := range map[string]any{
		"u8:255": uint8(255), "u8:0xFf": uint8(255), "u8:010": uint8(10), "u16:0x10": uint16(16), "u32:4294967295": uint32(math.MaxUint32),
		"u64:0xffffffffffffffff": uint64(math.MaxUint64), "i8:-128": int8(-128), "i8:-0x80": int8(-128), "i8:+5": int8(5),
		"i16:-1": int16(-1), "i32:0X7fffffff": int32(math.MaxInt32), "i64:-9223372036854775808": int64(math.MinInt64),
		"f32:0.1": float32(0.1), "f32:0x10": float32(16), "f32:-0x1.8p3": float32(-12), "f64:1e300": 1e300, "f64:-Inf": math.Inf(-1),
		"f32:bits:0x3f800000": float32(1), "f32:bits:1065353216": float32(1), "f64:bits:0xc000000000000000": -2.0,
		"f16:1": half(0x3c00), "f16:-2": half(0xc000), "f16:65504": half(0x7bff), "f16:0x10": half(0x4c00), "f16:0": half(0), "f16:-0": half(0x8000),
		"f16:65519.99": half(0x7bff), "f16:5.9604644775390625e-8": half(1), "f16:2.98023223876953125e-8": half(0), "f16:2.9802323e-8": half(1),
		"f16:0.00006103515625": half(0x0400), "f16:0.00006103": half(0x0400), "f16:1.00048828125": half(0x3c00), "f16:1.0014648": half(0x3c01), "f16:1.00146484375": half(0x3c02),
		"f16:inf": half(0x7c00), "f16:-Inf": half(0xfc00), "f16:nan": half(0x7e00), "f16:bits:0x3c01": half(0x3c01), "f16:1e-300": half(0),
		"bf16:1": bfloat(0x3f80), "bf16:-1e38": bfloat(0xfe96), "bf16:0.1": bfloat(0x3dcd), "bf16:1.00390625": bfloat(0x3f80), "bf16:1.01171875": bfloat(0x3f82),
		"bf16:1.00390626": bfloat(0x3f81), "bf16:1.0039062500000002": bfloat(0x3f81), "bf16:9.2e-41": bfloat(1), "bf16:inf": bfloat(0x7f80), "bf16:bits:65535": bfloat(0xffff),
	} {
		a, err := parseArgument(text)
		require.NoError(t, err, text)
		require.Equal(t, want, a.value, text)
	}
}

func TestBuffers(t *testing.T) {
	for text, want := range map[string]argument{
		"zero:4096":       {size: 4096},
		"zero:2KiB:o":     {size: 2048, out: "o"},
		"zero:1:a:b":      {size: 1, out: "a:b"},
		"in:/a/b":         {in: "/a/b"},
		"in:a:b":          {in: "a:b"},
		"inout:a:b":       {in: "a", out: "b"},
		"inout:a:b:c":     {in: "a", out: "b:c"},
		"inout:same:same": {in: "same", out: "same"},
	} {
		a, err := parseArgument(text)
		require.NoError(t, err, text)
		want.text = text
		require.Equal(t, want, *a)
		require.EqualValues(t, 8, a.bytes())
	}
}

func TestWrongArguments(t *testing.T) {
	for text, why := range map[string]string{
		"": "want u8: to u64:", "8": "want u8: to u64:", "u7:1": "want u8: to u64:", "U8:1": "want u8: to u64:", "zeros:1": "want u8: to u64:",
		"u8:": "from 0 to 255", "u8:256": "from 0 to 255", "u8:-1": "from 0 to 255", "u8:1_0": "from 0 to 255", "u8: 1": "from 0 to 255",
		"u16:65536": "from 0 to 65535", "u32:0x": "from 0 to 4294967295", "u32:0x-1": "from 0 to 4294967295", "u64:0x10000000000000000": "from 0 to 18446744073709551615",
		"i8:128": "from -128 to 127", "i8:0xff": "from -128 to 127", "i8:-0x81": "from -128 to 127", "i32:1.0": "from -2147483648 to 2147483647",
		"i64:9223372036854775808": "from -9223372036854775808 to 9223372036854775807",
		"f32:1e39":                "more than 32 bits can hold", "f64:1e309": "more than 64 bits can hold", "f32:": "want a number", "f32:two": "want a number", "f64:0x": "want a number",
		"f16:65520": "more than 16 bits can hold", "f16:1e999": "more than 16 bits can hold", "bf16:3.4e38": "more than 16 bits can hold", "f16:half": "want a number",
		"f16:bits:0x10000": "whole number of 16 bits", "f32:bits:": "whole number of 32 bits", "f32:bits:-1": "whole number of 32 bits", "f64:bits:1.0": "whole number of 64 bits",
		"u32:bits:1": "whole number from 0", "f8:1": "want u8: to u64:",
		"zero:": "SIZE", "zero:0": "SIZE: want more than 0", "zero:1KB": "SIZE", "zero:1:": "name of OUTFILE",
		"in:": "name of FILE", "inout:": "name of FILE", "inout:a": "name of OUTFILE", "inout:a:": "name of OUTFILE", "inout::b": "name of FILE",
	} {
		_, err := parseArgument(text)
		require.ErrorContains(t, err, why, text)
	}
	_, err := parseArguments([]string{"u8:1", "zero:1:same", "inout:other:same"})
	require.ErrorContains(t, err, `argument 3, "inout:other:same": another argument is written to same, too`)
	require.Equal(t, "-json", flagBehind([]string{"u8:1", "-json", "--list"}))
	require.Empty(t, flagBehind([]string{"i8:-1", "in:-"}))
}

func TestDim(t *testing.T) {
	for text, want := range map[string]dim{"1": {1, 1, 1}, "7": {7, 1, 1}, "7,8": {7, 8, 1}, "7,1,9": {7, 1, 9}, "4294967295,1,1": {math.MaxUint32, 1, 1},
		"0x10": {16, 1, 1}, "1M,2K": {1 << 20, 2048, 1}, "5000000000": {5000000000, 1, 1}, "99999999999999999999": {math.MaxUint64, 1, 1}} {
		var d dim
		require.NoError(t, d.Set(text))
		require.Equal(t, want, d)
		var again dim
		require.NoError(t, again.Set(d.String()))
		require.Equal(t, d, again)
	}
	for _, text := range []string{"", "0", "1,0", "-1", "1,", ",1", "1,2,3,4", "0x", "1KiB", "1B", "0x0", "1 2", "a"} {
		require.ErrorIs(t, new(dim).Set(text), errDim, text)
	}
}

// A block may have no shared memory of its own: 0 is a size there, and nowhere else.
func TestRoom(t *testing.T) {
	for text, want := range map[string]room{"0": 0, "0x0": 0, "1": 1, "64KiB": 64 << 10, "1M": 1 << 20} {
		r := room(5)
		require.NoError(t, r.Set(text), text)
		require.Equal(t, want, r, text)
	}
	for _, text := range []string{"", "-1", "1KB", "0.5"} {
		require.Error(t, new(room).Set(text), text)
	}
	require.Equal(t, "64KiB", room(64<<10).String())
}

// A kernel is given the bits of numbers that Go has no type for.
func TestGivenNumbers(t *testing.T) {
	for text, want := range map[string]any{"f16:1": uint16(0x3c00), "bf16:1": uint16(0x3f80), "f32:1": float32(1)} {
		a, err := parseArgument(text)
		require.NoError(t, err)
		require.Equal(t, want, a.given())
	}
}

// launch -o does not follow a link of another user.
func TestOutputLink(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root makes links of another user")
	}
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink("/dev/null", link))
	require.NoError(t, (&argument{out: link}).checkOutput())
	require.NoError(t, os.Lchown(link, 65534, 65534))
	require.ErrorContains(t, (&argument{out: link}).checkOutput(), `user 65534 has put there, to "/dev/null"`)
}
