package report

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDuration(t *testing.T) {
	for want, ns := range map[string]float64{
		"0 ns": 0, "0.500 ns": 0.5, "27.4 ns": 27.42, "999 ns": 999.4, "1.00 µs": 999.6, "1.24 µs": 1240,
		"41.2 ms": 41.2e6, "3.00 s": 3e9, "4000 s": 4e12, "-12.3 µs": -12345,
	} {
		require.Equal(t, want, Duration(ns))
	}
	require.Equal(t, "–", Duration(math.NaN()))
}

func TestRatio(t *testing.T) {
	for want, x := range map[string]float64{"1.23×": 1.234, "0.637×": 0.6371, "12.3×": 12.34, "1234×": 1234, "10.0×": 9.996} {
		require.Equal(t, want, Ratio(x))
	}
	require.Equal(t, "–", Ratio(math.NaN()))
}

func TestExponent(t *testing.T) {
	require.Equal(t, "1.00", Exponent(0.998))
	require.Equal(t, "-0.30", Exponent(-0.3))
	require.Equal(t, "–", Exponent(math.NaN()))
}

func TestBytes(t *testing.T) {
	for want, n := range map[string]float64{
		"0 B": 0, "1 B": 1, "1,000 B": 1000, "1 KiB": 1024, "2 MiB": 2 << 20, "8 GiB": 8 << 30, "128 GiB": 128 << 30,
		"1,025 KiB": 1025 << 10, "2,048 TiB": 2048 << 40,
	} {
		require.Equal(t, want, Bytes(n))
	}
}

func TestNumber(t *testing.T) {
	for want, x := range map[string]float64{
		"0": 0, "1": 1, "0.75": 0.75, "1.075": 1.0749, "4,096": 4096, "-1,234,567.5": -1234567.5, "1e-05": 1e-5, "100": 100,
	} {
		require.Equal(t, want, number(x))
	}
}
