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
		r := vg.Rectangle{
			Min: vg.Point{X: x(left), Y: y(foot)},
			Max: vg.Point{X: x(left+groupWidth/float64(b.n)) - vg.Points(0.6), Y: y(v)},
		}
		c.SetColor(colour(b.i))
		c.Fill(r.Path())
		writeValue(c, p, r, v)
	}
}

// writeValue writes v over its bar, if there is room for it.
func writeValue(c draw.Canvas, p *plot.Plot, bar vg.Rectangle, v float64) {
	style := p.Y.Tick.Label
	style.Font.Size, style.XAlign, style.YAlign = 9, draw.XCenter, draw.YBottom
	text := p.Y.Tick.Marker.(ticks).format(math.Copysign(rounded(v), v))
	if style.Width(text) > bar.Size().X {
		text, _, _ = strings.Cut(text, " ") // the axis has the unit
	}
	if style.Width(text) <= bar.Size().X {
		c.FillText(style, vg.Point{X: (bar.Min.X + bar.Max.X) / 2, Y: bar.Max.Y + 2}, text)
	}
}

func (b bars) Thumbnail(c *draw.Canvas) {
	c.SetColor(colour(b.i))
	c.Fill(c.Rectangle.Path())
}

func (c Chart) fillBars(p *plot.Plot, legend *plot.Legend) error {
	low, high := math.Inf(1), math.Inf(-1)
	for i, s := range c.Series {
		values := s.Y[:min(len(s.Y), len(c.Labels))]
		for _, v := range values {
			if showable(v, c.LogY) {
				low, high = math.Min(low, v), math.Max(high, v)
			}
		}
		b := bars{values: values, i: i, n: len(c.Series), log: c.LogY}
		p.Add(b)
		legend.Add(s.Name, b)
	}
	if low > high {
		return errNothing
	}
	p.NominalX(c.Labels...)
	p.X.Min, p.X.Max = -0.5, float64(len(c.Labels))-0.5
	p.Y.Min, p.Y.Max = span(low, high, c.LogY)
	if c.LogY { // the smallest bar is to be seen
		p.Y.Min = low / 2
	}
	return nil
}
