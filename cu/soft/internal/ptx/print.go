package ptx

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// A printer does what printf does, with arguments that lie one behind the other,
// each aligned to its size.
type printer struct {
	t     *thread
	args  uint64 // address of the next
	out   []byte
	count int // of arguments
}

// A directive of a format: %-08.3lld.
type directive struct {
	flags     string
	width     int // -1 is none
	precision int
	size      int // bytes of a whole number
	verb      byte
}

// The limits of one printf: further arguments are ignored, as the CUDA C++ guide says,
// and longer text is cut off.
const (
	maxArguments = 32
	maxPrinted   = 1 << 20
)

// print prints a format's text and arguments.
func (p *printer) print(format string) {
	for format != "" && p.t.fault == nil && len(p.out) < maxPrinted {
		n := strings.IndexByte(format, '%')
		if n < 0 {
			n = len(format)
		}
		p.out = append(p.out, format[:n]...)
		if format = format[n:]; format == "" {
			return
		}
		d, length := p.directive(format)
		if p.count >= maxArguments && d.verb != '%' {
			d.verb = 0 // so it is no directive
		}
		p.verb(d, format[:length])
		format = format[length:]
	}
}

// directive reads what a format begins with, and where there is a *, arguments.
func (p *printer) directive(s string) (d directive, length int) {
	d.width, d.precision, d.size = -1, -1, 4
	n := 1
	for n < len(s) && strings.IndexByte("-+ #0", s[n]) >= 0 {
		d.flags += s[n : n+1]
		n++
	}
	if d.width, n = p.number(s, n); d.width < -1 {
		d.flags, d.width = d.flags+"-", -d.width
	}
	if n < len(s) && s[n] == '.' {
		if n++; n < len(s) && s[n] == '*' { // a GPU knows * as a width only, and has no argument for it
			return d, min(n+2, len(s))
		}
		if d.precision, n = p.number(s, n); d.precision < 0 {
			d.precision = 0
		}
	}
	for n < len(s) && strings.IndexByte("hlLqjzt", s[n]) >= 0 {
		if s[n] != 'h' {
			d.size = 8
		} else if d.size > 1 {
			d.size /= 2
		}
		n++
	}
	if n < len(s) {
		d.verb = s[n]
		n++
	}
	return d, n
}

// maxWidth bounds widths and precisions.
const maxWidth = 4096

// number reads one of a directive's, or takes an argument for it; -1 is none.
func (p *printer) number(s string, n int) (v, next int) {
	if n < len(s) && s[n] == '*' {
		return max(-maxWidth, min(maxWidth, int(int32(p.argument(4))))), n + 1
	}
	from := n
	for n < len(s) && isDigit(s[n]) {
		n++
	}
	if n == from {
		return -1, n
	}
	v, err := strconv.Atoi(s[from:n])
	if err != nil || v > maxWidth {
		v = maxWidth
	}
	return v, n
}

// argument takes the next one.
func (p *printer) argument(size int) uint64 {
	p.args = alignUp(p.args, uint64(size))
	m := p.t.at(generic, p.args, uint64(size), false)
	if m == nil {
		return 0
	}
	p.args += uint64(size)
	p.count++
	return getters[size](m)
}

// whole takes an argument that is a whole number: with h and hh its low bits.
func (p *printer) whole(d directive) uint64 {
	return p.argument(max(4, d.size)) & typ{unsigned, d.size}.mask()
}

// verb prints one argument. Text that is no directive is printed as it stands.
func (p *printer) verb(d directive, text string) {
	switch d.verb {
	case '%':
		p.out = append(p.out, '%')
	case 'd', 'i':
		v := typ{signed, d.size}.signed64(p.whole(d))
		p.integer(d, strconv.FormatUint(uint64(max(v, -v)), 10), sign(d, v < 0))
	case 'u':
		p.integer(d, strconv.FormatUint(p.whole(d), 10), "")
	case 'x', 'X', 'o':
		p.based(d)
	case 'p':
		if v := p.argument(8); v == 0 {
			p.pad(d, "", "(nil)", false)
		} else {
			p.pad(d, "", "0x"+strconv.FormatUint(v, 16), false)
		}
	case 'c':
		p.pad(d, "", string([]byte{byte(p.argument(4))}), false)
	case 's':
		s, _ := p.t.text(p.argument(8))
		if d.precision >= 0 {
			s = s[:min(len(s), d.precision)]
		}
		p.pad(d, "", s, false)
	case 'f', 'F', 'e', 'E', 'g', 'G', 'a', 'A':
		p.float(d, math.Float64frombits(p.argument(8)))
	default:
		p.out = append(p.out, text...)
	}
}

// sign returns what stands before a number.
func sign(d directive, minus bool) string {
	switch {
	case minus:
		return "-"
	case strings.Contains(d.flags, "+"):
		return "+"
	case strings.Contains(d.flags, " "):
		return " "
	}
	return ""
}

// integer prints digits, as many as the precision says at least.
func (p *printer) integer(d directive, digits, prefix string) {
	if d.precision == 0 && digits == "0" {
		digits = ""
	}
	if n := d.precision - len(digits); n > 0 {
		digits = strings.Repeat("0", n) + digits
	}
	p.pad(d, prefix, digits, d.precision < 0)
}

// based prints %x, %X and %o.
func (p *printer) based(d directive) {
	v, prefix := p.whole(d), ""
	digits := fmt.Sprintf("%"+string(d.verb), v)
	switch alternate := strings.Contains(d.flags, "#") && v != 0; {
	case alternate && d.verb != 'o':
		prefix = "0" + string(d.verb)
	case alternate && d.precision <= len(digits):
		digits = "0" + digits
	}
	p.integer(d, digits, prefix)
}

// float prints a double.
func (p *printer) float(d directive, v float64) {
	prefix := sign(d, math.Signbit(v))
	upper := d.verb >= 'A' && d.verb <= 'Z'
	v = math.Abs(v)
	var s string
	switch {
	case math.IsInf(v, 0):
		s = "inf"
	case v != v:
		s = "nan"
	case d.verb == 'a' || d.verb == 'A':
		prefix, s = prefix+"0x", hexFloat(v, d.precision)[2:] // zeros go between
	default:
		s = decimal(d, v)
	}
	if upper {
		prefix, s = strings.ToUpper(prefix), strings.ToUpper(s)
	}
	p.pad(d, prefix, s, !math.IsInf(v, 0) && v == v)
}

// decimal is %f, %e or %g of a number that is not negative.
func decimal(d directive, v float64) string {
	verb, precision := d.verb|0x20, d.precision
	switch {
	case precision < 0:
		precision = 6
	case verb == 'g':
		precision = max(precision, 1)
	}
	if strings.Contains(d.flags, "#") {
		return fmt.Sprintf("%#.*"+string(verb), precision, v)
	}
	return strconv.FormatFloat(v, verb, precision, 64)
}

// hexFloat is %a: Go's has two digits in its exponent at least.
func hexFloat(v float64, precision int) string {
	s := strconv.FormatFloat(v, 'x', precision, 64)
	mantissa, exponent, _ := strings.Cut(s, "p")
	digits := strings.TrimLeft(exponent[1:], "0")
	if digits == "" {
		digits = "0"
	}
	return mantissa + "p" + exponent[:1] + digits
}

// pad prints text filled up to the width: with zeros behind the prefix, or with
// blanks.
func (p *printer) pad(d directive, prefix, s string, zeros bool) {
	missing := max(0, d.width-len(prefix)-len(s))
	left := strings.Contains(d.flags, "-")
	switch {
	case left:
		s = prefix + s + strings.Repeat(" ", missing)
	case zeros && strings.Contains(d.flags, "0"):
		s = prefix + strings.Repeat("0", missing) + s
	default:
		s = strings.Repeat(" ", missing) + prefix + s
	}
	p.out = append(p.out, s...)
}
