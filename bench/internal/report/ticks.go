package report

import (
	"math"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
)

// ticks are those of an axis: round numbers, some of them with a label.
type ticks struct {
	format func(float64) string
	log    bool
	twos   bool // on a logarithmic axis, at powers of two
}

// maxLabels is how many labels fit on an axis.
const maxLabels = 9

func (t ticks) Ticks(low, high float64) []plot.Tick {
	switch {
	case !t.log:
		return t.linear(low, high)
	case t.twos:
		return t.powers(low, high)
	}
	return t.decades(low, high)
}

// linear puts labels at multiples of 1, 2 or 5 times a power of ten.
func (t ticks) linear(low, high float64) []plot.Tick {
	step := math.Pow(10, math.Floor(math.Log10((high-low)/maxLabels)))
	for _, times := range []float64{1, 2, 5, 10} {
		if (high-low)/(step*times) < maxLabels {
			step *= times
			break
		}
	}
	var ts []plot.Tick
	for i := math.Ceil(low / step); i*step <= high; i++ {
		ts = append(ts, plot.Tick{Value: i * step, Label: t.format(i * step)})
	}
	return ts
}

// powers puts ticks at all powers of two and labels at every so many of them.
func (t ticks) powers(low, high float64) []plot.Tick {
	first, last := int(math.Ceil(math.Log2(low))), int(math.Floor(math.Log2(high)))
	every := (last-first)/maxLabels + 1
	var ts []plot.Tick
	for i := first; i <= last; i++ {
		tick := plot.Tick{Value: math.Ldexp(1, i)}
		if (i-first)%every == 0 {
			tick.Label = t.format(tick.Value)
		}
		ts = append(ts, tick)
	}
	return ts
}

// decades puts ticks at 1 to 9 times each power of ten, and labels at 1 alone
// where there are many, at 1, 2 and 5, or at all; an axis too short even for
// these has the ticks of a linear one.
func (t ticks) decades(low, high float64) []plot.Tick {
	for _, digits := range []string{"1", "125", "123456789"} {
		if ts, labels := t.decadesAt(digits, low, high); labels > 2 {
			return ts
		}
	}
	return t.linear(low, high)
}

// decadesAt labels the ticks of these first digits, and counts the labels.
func (t ticks) decadesAt(digits string, low, high float64) (ts []plot.Tick, labels int) {
	for e := math.Floor(math.Log10(low)); math.Pow(10, e) <= high; e++ {
		for i := 1; i < 10; i++ {
			tick := plot.Tick{Value: float64(i) * math.Pow(10, e)}
			if tick.Value < low || tick.Value > high {
				continue
			}
			if strings.Contains(digits, strconv.Itoa(i)) {
				tick.Label = t.format(tick.Value)
				labels++
			}
			ts = append(ts, tick)
		}
	}
	return ts, labels
}
