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

func TestTimes(t *testing.T) {
	for want, x := range map[string]float64{"1.23×": 1.234, "0.637×": 0.6371, "12.3×": 12.34, "1234×": 1234, "10.0×": 9.996} {
		require.Equal(t, want, Times(x))
	}
	require.Equal(t, "–", Times(math.NaN()))
}
