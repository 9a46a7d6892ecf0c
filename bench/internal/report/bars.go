package report

import (
	"image/color"
	"math"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// palette is Okabe and Ito's, which the colour-blind can tell apart too.
var palette = []color.Color{
	color.RGBA{R: 0x00, G: 0x72, B: 0xb2, A: 0xff},
	color.RGBA{R: 0xe6, G: 0x9f, B: 0x00, A: 0xff},
	color.RGBA{R: 0x00, G: 0x9e, B: 0x73, A: 0xff},
	color.RGBA{R: 0xd5, G: 0x5e, B: 0x00, A: 0xff},
	color.RGBA{R: 0xcc, G: 0x79, B: 0xa7, A: 0xff},
	color.RGBA{R: 0x56, G: 0xb4, B: 0xe9, A: 0xff},
	color.RGBA{R: 0x59, G: 0x59, B: 0x59, A: 0xff},
	color.RGBA{R: 0xb8, G: 0xa8, B: 0x00, A: 0xff},
}

func colour(i int) color.Color { return palette[i%len(palette)] }

var shapes = []draw.GlyphDrawer{
	draw.CircleGlyph{}, draw.BoxGlyph{}, draw.PyramidGlyph{}, draw.RingGlyph{}, draw.SquareGlyph{},
	draw.TriangleGlyph{}, draw.CrossGlyph{},
}

// grid is pale lines at the ticks with a label; those of the X axis make no
// sense between bars.
func grid(vertical bool) plot.Plotter {
	g := plotter.NewGrid()
	g.Horizontal.Color, g.Vertical.Color = color.Gray{Y: 0xdd}, nil
	if vertical {
		g.Vertical.Color = g.Horizontal.Color
	}
	return g
}

// bars are one series of a bar chart: bar number i of n in each group. gonum's
// own begin at 0, which no logarithmic axis has.
type bars struct {
	values []float64
	i, n   int
	log    bool
}

// groupWidth is the part of a group's place that its bars fill.
const groupWidth = 0.84

func (b bars) Plot(c draw.Canvas, p *plot.Plot) {
	b.each(c, p, func(bar vg.Rectangle, _ float64) {
		c.SetColor(colour(b.i))
		c.Fill(bar.Path())
	})
}

// each calls f for each bar that can be shown.
func (b bars) each(c draw.Canvas, p *plot.Plot, f func(bar vg.Rectangle, v float64)) {
	x, y := p.Transforms(&c)
	for label, v := range b.values {
		if !showable(v, b.log) {
			continue
		}
		left := float64(label) + groupWidth*(float64(b.i)/float64(b.n)-0.5)
		foot := p.Y.Min
		if !b.log {
			foot = 0
		}
		f(vg.Rectangle{
			Min: vg.Point{X: x(left), Y: y(foot)},
			Max: vg.Point{X: x(left+groupWidth/float64(b.n)) - vg.Points(0.6), Y: y(v)},
		}, v)
	}
}

// values are those of all bars of a chart, over them: of all or of none.
type values []bars

func (vs values) Plot(c draw.Canvas, p *plot.Plot) {
	for _, unit := range []bool{true, false} { // the axis has it too
		fit := true
		vs.each(c, p, unit, func(style draw.TextStyle, bar vg.Rectangle, text string) {
			fit = fit && style.Width(text) <= bar.Size().X
		})
		if fit {
			vs.each(c, p, unit, func(style draw.TextStyle, bar vg.Rectangle, text string) {
				c.FillText(style, vg.Point{X: (bar.Min.X + bar.Max.X) / 2, Y: bar.Max.Y + 2}, text)
			})
			return
		}
	}
}

// each calls f for each bar with its value, with the unit or without.
func (vs values) each(c draw.Canvas, p *plot.Plot, unit bool, f func(draw.TextStyle, vg.Rectangle, string)) {
	style := p.Y.Tick.Label
	style.Font.Size, style.XAlign, style.YAlign = 9, draw.XCenter, draw.YBottom
	for _, b := range vs {
		b.each(c, p, func(bar vg.Rectangle, v float64) {
			text := p.Y.Tick.Marker.(ticks).format(math.Copysign(rounded(v), v))
			if !unit {
				text, _, _ = strings.Cut(text, " ")
			}
			f(style, bar, text)
		})
	}
}

func (b bars) Thumbnail(c *draw.Canvas) {
	c.SetColor(colour(b.i))
	c.Fill(c.Rectangle.Path())
}

func (c Chart) fillBars(p *plot.Plot, legend *plot.Legend) error {
	low, high := math.Inf(1), math.Inf(-1)
	var all values
	for i, s := range c.Series {
		ys := s.Y[:min(len(s.Y), len(c.Labels))]
		for _, v := range ys {
			if showable(v, c.LogY) {
				low, high = math.Min(low, v), math.Max(high, v)
			}
		}
		b := bars{values: ys, i: i, n: len(c.Series), log: c.LogY}
		all = append(all, b)
		p.Add(b)
		legend.Add(s.Name, b)
	}
	if low > high {
		return errNothing
	}
	p.Add(all)
	p.NominalX(c.Labels...)
	p.X.Min, p.X.Max = -0.5, float64(len(c.Labels))-0.5
	p.Y.Min, p.Y.Max = span(low, high, c.LogY)
	if c.LogY { // the smallest bar is to be seen
		p.Y.Min = low / 2
	}
	return nil
}
