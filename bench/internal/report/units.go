package report

import (
	"math"
	"strconv"
)

// none stands where nothing was measured.
const none = "–"

// Duration prints ns nanoseconds with three significant digits: "1.24 µs".
func Duration(ns float64) string {
	if math.IsNaN(ns) {
		return none
	}
	units := []string{"ns", "µs", "ms", "s"}
	for len(units) > 1 && rounded(ns) >= 1000 {
		ns /= 1000
		units = units[1:]
	}
	return digits(ns) + " " + units[0]
}

// Times prints x with three significant digits: "1.23×".
func Times(x float64) string {
	if math.IsNaN(x) {
		return none
	}
	return digits(x) + "×"
}

// rounded is the size of x with three significant digits.
func rounded(x float64) float64 {
	r, _ := strconv.ParseFloat(strconv.FormatFloat(math.Abs(x), 'e', 2, 64), 64)
	return r
}

// digits prints x with three significant digits, and all of those before the
// point; a plain 0 is exact.
func digits(x float64) string {
	if x == 0 || math.IsInf(x, 0) {
		return strconv.FormatFloat(x, 'f', -1, 64)
	}
	exponent := int(math.Floor(math.Log10(rounded(x)) + 1e-12))
	return strconv.FormatFloat(x, 'f', max(0, 2-exponent), 64)
}
