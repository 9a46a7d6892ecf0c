package report

import (
	"bytes"
	"errors"
	"io"
	"math"
	"regexp"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/font/liberation"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// A Chart is a plot of lines, or with Labels one of bars: one group for each
// label, with a bar of each series. An axis whose title ends in ", bytes" or
// ", ns" has ticks such as 64 MiB and 20 µs, and loses that ending. Points that
// an axis cannot show, NaN and what is not positive on a logarithmic one, are
// left out.
type Chart struct {
	Name       string // in the file's name
	Title      string
	X, Y       string // titles of the axes
	LogX, LogY bool
	Series     []Series
	Labels     []string
}

// Series are the points or bars of one name. Bars have no X.
type Series struct {
	Name string
	X, Y []float64
}

const (
	chartWidth  = 9.5 * vg.Inch
	chartHeight = 5 * vg.Inch
	margin      = vg.Length(10)
)

// svg draws the chart; equal charts give equal bytes.
func (c Chart) svg(w io.Writer) error {
	canvas := vgsvg.NewWith(vgsvg.UseWH(chartWidth, chartHeight))
	if err := c.draw(draw.New(canvas)); err != nil {
		return err
	}
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return err
	}
	// Arial and Helvetica have the same widths, for who lacks Liberation.
	out := strings.ReplaceAll(b.String(), "font-family:Liberation Sans;",
		"font-family:'Liberation Sans',Arial,Helvetica,sans-serif;")
	_, err := io.WriteString(w, out)
	return err
}

// draw puts the legend beside the plot, where no line is under it.
func (c Chart) draw(canvas draw.Canvas) error {
	p, legend := newPlot(), newLegend()
	p.Title.Text = c.Title
	if err := c.fill(p, &legend); err != nil {
		return err
	}
	c.axes(p)
	canvas.SetColor(p.BackgroundColor)
	canvas.Fill(canvas.Rectangle.Path())
	canvas = draw.Crop(canvas, margin, -margin, margin, -margin)
	if len(c.Series) > 1 {
		width := legend.Rectangle(canvas).Size().X + 2*margin
		side := draw.Crop(canvas, canvas.Size().X-width+2*margin, 0, 0, -2*legend.TextStyle.Font.Size)
		legend.Draw(side)
		canvas = draw.Crop(canvas, 0, -width, 0, 0)
	}
	p.Draw(canvas)
	return nil
}

// sans is the one typeface, whose widths gonum brings along.
func sans(size vg.Length) font.Font {
	return font.Font{Typeface: "Liberation", Variant: "Sans", Size: size}
}

var handler = text.Plain{Fonts: font.NewCache(liberation.Collection())}

func newPlot() *plot.Plot {
	p := plot.New()
	p.TextHandler = handler
	for style, size := range map[*text.Style]vg.Length{
		&p.Title.TextStyle: 15, &p.X.Label.TextStyle: 13, &p.Y.Label.TextStyle: 13,
		&p.X.Tick.Label: 11, &p.Y.Tick.Label: 11,
	} {
		style.Font, style.Handler = sans(size), handler
	}
	p.Title.Padding = margin
	p.X.Label.Padding, p.Y.Label.Padding = margin/2, margin/2
	return p
}

func newLegend() plot.Legend {
	l := plot.NewLegend()
	l.TextStyle.Font, l.TextStyle.Handler = sans(12), handler
	l.Top, l.Left = true, true
	l.ThumbnailWidth = 24
	l.Padding = 5
	return l
}

// axes sets titles, scales and ticks.
func (c Chart) axes(p *plot.Plot) {
	if len(c.Labels) == 0 {
		scale(&p.X, c.X, c.LogX, c.LogX && powersOfTwo(c.Series))
	} else {
		p.X.Label.Text = c.X
	}
	scale(&p.Y, c.Y, c.LogY, false)
}

// unit finds the unit at the end of an axis' title.
var unit = regexp.MustCompile(`^(.*?)[ ,(]*\b(bytes|ns)\)?$`)

func scale(a *plot.Axis, title string, log, twos bool) {
	format := number
	if m := unit.FindStringSubmatch(title); m != nil {
		format = map[string]func(float64) string{"bytes": Bytes, "ns": shortDuration}[m[2]]
		title = m[1]
	}
	a.Label.Text = title
	if log {
		a.Scale = plot.LogScale{}
	}
	a.Tick.Marker = ticks{format: format, log: log, twos: twos}
}

// powersOfTwo reports whether all X are.
func powersOfTwo(series []Series) bool {
	for _, s := range series {
		for _, x := range s.X {
			if half, _ := math.Frexp(x); half != 0.5 {
				return false
			}
		}
	}
	return true
}

var errNothing = errors.New("there is nothing to draw")

// fill adds the series to plot and legend, and sets the ranges of the axes.
func (c Chart) fill(p *plot.Plot, legend *plot.Legend) error {
	p.Add(grid(len(c.Labels) == 0))
	if len(c.Labels) > 0 {
		return c.fillBars(p, legend)
	}
	var shown plotter.XYs
	for i, s := range c.Series {
		xys := c.points(s)
		if len(xys) == 0 {
			continue
		}
		shown = append(shown, xys...)
		line, points, err := plotter.NewLinePoints(xys)
		if err != nil {
			return err
		}
		line.Color, points.Color = colour(i), colour(i)
		line.Width = vg.Points(1.8)
		if i >= len(palette) { // its colour is there already
			line.Dashes = []vg.Length{vg.Points(4), vg.Points(3)}
		}
		points.Shape, points.Radius = shapes[i%len(shapes)], vg.Points(3.2)
		p.Add(line, points)
		legend.Add(s.Name, line, points)
	}
	if len(shown) == 0 {
		return errNothing
	}
	xmin, xmax, ymin, ymax := plotter.XYRange(shown)
	p.X.Min, p.X.Max = span(xmin, xmax, c.LogX)
	p.Y.Min, p.Y.Max = span(ymin, ymax, c.LogY)
	return nil
}

// points are those of s that the axes can show.
func (c Chart) points(s Series) plotter.XYs {
	var xys plotter.XYs
	for i := range min(len(s.X), len(s.Y)) {
		if showable(s.X[i], c.LogX) && showable(s.Y[i], c.LogY) {
			xys = append(xys, plotter.XY{X: s.X[i], Y: s.Y[i]})
		}
	}
	return xys
}

func showable(x float64, log bool) bool {
	return !math.IsNaN(x) && !math.IsInf(x, 0) && (!log || x > 0)
}

// span leaves room around the data; a linear axis begins at 0.
func span(low, high float64, log bool) (float64, float64) {
	if log {
		room := math.Max(math.Pow(high/low, 0.04), 1.1)
		return low / room, high * room
	}
	if low, high = math.Min(low, 0), math.Max(high, 0); low == high {
		high = 1
	}
	room := (high - low) * 0.05
	if low < 0 {
		low -= room
	}
	return low, high + room
}
