package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
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

// Ratio prints x with three significant digits: "1.23×".
func Ratio(x float64) string {
	if math.IsNaN(x) {
		return none
	}
	return digits(x) + "×"
}

// Exponent prints how something grows, with two digits behind the point.
func Exponent(x float64) string {
	if math.IsNaN(x) {
		return none
	}
	return strconv.FormatFloat(x, 'f', 2, 64)
}

// Bytes prints n bytes in the largest unit that leaves a whole number:
// "64 MiB".
func Bytes(n float64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for len(units) > 1 && n >= 1024 && n == math.Trunc(n) && math.Mod(n, 1024) == 0 {
		n /= 1024
		units = units[1:]
	}
	return number(n) + " " + units[0]
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

// number prints x as people write it: at most three digits after the point and
// no zeros at their end, and commas between thousands.
func number(x float64) string {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return fmt.Sprint(x)
	}
	if x != 0 && math.Abs(x) < 0.01 {
		return strconv.FormatFloat(x, 'g', 3, 64)
	}
	s := strconv.FormatFloat(math.Abs(x), 'f', 3, 64)
	whole, part, _ := strings.Cut(s, ".")
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if part = strings.TrimRight(part, "0"); part != "" {
		whole += "." + part
	}
	if x < 0 {
		whole = "-" + whole
	}
	return whole
}

// shortDuration is Duration for the ticks of an axis: "20 µs".
func shortDuration(ns float64) string {
	units := []string{"ns", "µs", "ms", "s"}
	for len(units) > 1 && rounded(ns) >= 1000 {
		ns /= 1000
		units = units[1:]
	}
	return number(ns) + " " + units[0]
}
