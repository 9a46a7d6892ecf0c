package main

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNumbers(t *testing.T) {
	for text, want := range map[string]any{
		"u8:255": uint8(255), "u8:0xFf": uint8(255), "u8:010": uint8(10), "u16:0x10": uint16(16), "u32:4294967295": uint32(math.MaxUint32),
		"u64:0xffffffffffffffff": uint64(math.MaxUint64), "i8:-128": int8(-128), "i8:-0x80": int8(-128), "i8:+5": int8(5),
		"i16:-1": int16(-1), "i32:0X7fffffff": int32(math.MaxInt32), "i64:-9223372036854775808": int64(math.MinInt64),
		"f32:0.1": float32(0.1), "f32:0x10": float32(16), "f32:-0x1.8p3": float32(-12), "f64:1e300": 1e300, "f64:-Inf": math.Inf(-1),
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
		"zero:": "SIZE", "zero:0": "SIZE: want more than 0", "zero:1KB": "SIZE", "zero:1:": "name of OUTFILE",
		"in:": "name of FILE", "inout:": "name of FILE", "inout:a": "name of OUTFILE", "inout:a:": "name of OUTFILE", "inout::b": "name of FILE",
	} {
		_, err := parseArgument(text)
		require.ErrorContains(t, err, why, text)
	}
	_, err := parseArguments([]string{"u8:1", "zero:1:same", "inout:other:same"})
	require.ErrorContains(t, err, `argument 3, "inout:other:same": another argument is written to same, too`)
	_, err = parseArguments([]string{"u8:1", "-json"})
	require.ErrorContains(t, err, "-json: flags stand before")
}

func TestDim(t *testing.T) {
	for text, want := range map[string]dim{"1": {1, 1, 1}, "7": {7, 1, 1}, "7,8": {7, 8, 1}, "7,1,9": {7, 1, 9}, "4294967295,1,1": {math.MaxUint32, 1, 1}} {
		var d dim
		require.NoError(t, d.Set(text))
		require.Equal(t, want, d)
		var again dim
		require.NoError(t, again.Set(d.String()))
		require.Equal(t, d, again)
	}
	for _, text := range []string{"", "0", "1,0", "-1", "1,", ",1", "1,2,3,4", "4294967296", "0x10", "1 2", "a"} {
		require.ErrorIs(t, new(dim).Set(text), errDim, text)
	}
}
