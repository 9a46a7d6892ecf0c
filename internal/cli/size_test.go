package cli

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSizesAreRead(t *testing.T) {
	for text, want := range map[string]uint64{
		"1": 1, "4096": 4096, "1B": 1, "64KiB": 64 << 10, "1MiB": 1 << 20, "2GiB": 2 << 30, "3TiB": 3 << 40, "64 MiB": 64 << 20,
		"1K": 1 << 10, "1M": 1 << 20, "3G": 3 << 30, "2 T": 2 << 40, "0x10": 16, "0x1B": 27, "0xffKiB": 255 << 10, "0x1M": 1 << 20,
		"007": 7, "18446744073709551615": math.MaxUint64, "16777215TiB": 16777215 << 40, "18014398509481983KiB": math.MaxUint64 - 1023,
	} {
		var s Size
		require.NoError(t, s.Set(text), text)
		require.EqualValues(t, want, s, text)
	}
}

// FAULTS 28, 35 as a person may type them.
func TestFault28and35_BadSizesAreUsage(t *testing.T) {
	for text, want := range map[string]string{
		"": "whole number", "MiB": "whole number", "-1": "whole number", "+1": "whole number", "1.5MiB": "whole number",
		"0x": "whole number", "0xKiB": "whole number", "0x-1": "whole number", "0x1G0": "whole number", "1e3": "whole number", "1_000": "whole number", "1mib": "whole number", "1MB": "whole number",
		"1m": "whole number", "1MM": "whole number", "1MiBM": "whole number", "1MiBMiB": "whole number", "1KiBB": "whole number", " 1": "whole number", "١": "whole number",
		"0": "more than 0", "0MiB": "more than 0", "000": "more than 0",
		"18446744073709551616": "64 bits", "0x10000000000000000": "64 bits", "16777216TiB": "64 bits", "18014398509481984KiB": "64 bits",
	} {
		s := Size(5)
		require.ErrorContains(t, s.Set(text), want, "%q", text)
		require.EqualValues(t, 5, s, "unchanged")
	}
}

func TestCountsAreRead(t *testing.T) {
	for text, want := range map[string]uint64{
		"0": 0, "7": 7, "0x10": 16, "1K": 1024, "1M": 1 << 20, "4294967296": 1 << 32,
		"18446744073709551616": math.MaxUint64, "16777216T": math.MaxUint64,
	} {
		v, err := ParseCount(text)
		require.NoError(t, err, text)
		require.Equal(t, want, v, text)
	}
	for _, text := range []string{"", "K", "-1", "+1", "1.5", "1KiB", "1B", "1k", "1 2", "a"} {
		_, err := ParseCount(text)
		require.ErrorIs(t, err, errNotWhole, text)
	}
}

func TestSizesArePrinted(t *testing.T) {
	for size, want := range map[Size][2]string{
		0: {"0", "0 bytes"}, 1: {"1", "1 byte"}, 1023: {"1023", "1023 bytes"}, 1024: {"1KiB", "1 KiB"},
		1536: {"1536", "1.5 KiB"}, 1 << 20: {"1MiB", "1 MiB"}, 3 << 29: {"1536MiB", "1.5 GiB"}, 1 << 40: {"1TiB", "1 TiB"},
		150110011391: {"150110011391", "139.8 GiB"}, math.MaxUint64: {"18446744073709551615", "16777216 TiB"},
	} {
		require.Equal(t, want[0], size.String())
		require.Equal(t, want[1], Human(uint64(size)))
	}
}

// FuzzSize: what is accepted is printed as something that means the same.
func FuzzSize(f *testing.F) {
	for _, s := range []string{"1", "64KiB", "3 MiB", "0", "-1", "16777216TiB", "B", "", "9999999999999999999999GiB", "1\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var s, again Size
		if s.Set(text) != nil {
			if s != 0 {
				t.Fatalf("%q is refused and sets %d", text, s)
			}
			return
		}
		if s == 0 || strings.HasPrefix(text, "-") {
			t.Fatalf("%q is %d", text, s)
		}
		if err := again.Set(s.String()); err != nil || again != s {
			t.Fatalf("%q is %d, printed as %q, which is %d (%v)", text, s, s, again, err)
		}
	})
}
