package launch

import (
	"errors"
	"strconv"
	"strings"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
)

// dim is a flag of X, X,Y or X,Y,Z, which may be more than any device takes.
type dim [3]uint64

var errDim = errors.New("want X, X,Y or X,Y,Z, each a whole number from 1: decimal, 0x, or with K or M for 1024 or 1048576")

// Set reads up to three numbers; those that are left out are 1.
func (d *dim) Set(s string) error {
	sizes := dim{1, 1, 1}
	parts := strings.Split(s, ",")
	if len(parts) > len(sizes) {
		return errDim
	}
	for i, p := range parts {
		v, err := cli.ParseCount(p)
		if err != nil || v == 0 {
			return errDim
		}
		sizes[i] = v
	}
	*d = sizes
	return nil
}

// Type names the type for package pflag.
func (d *dim) Type() string { return "dim" }

// String leaves out ones at the end.
func (d *dim) String() string {
	text := strconv.FormatUint(d[0], 10)
	for i, size := range d[1:] {
		if size > 1 || d[2] > 1 && i == 0 {
			text += "," + strconv.FormatUint(size, 10)
		}
	}
	return text
}

// given returns the sizes for the driver; they must fit.
func (d dim) given() cu.Dim3 { return cu.Dim3{X: uint32(d[0]), Y: uint32(d[1]), Z: uint32(d[2])} }

// room is a flag of bytes that may be 0.
type room cli.Size

// Set reads a number of bytes.
func (r *room) Set(text string) error {
	if v, err := cli.ParseCount(text); err == nil && v == 0 {
		*r = 0
		return nil
	}
	return (*cli.Size)(r).Set(text)
}

// Type names the type for package pflag.
func (r *room) Type() string { return "size" }

// String prints the size as [cli.Size] does.
func (r room) String() string { return cli.Size(r).String() }
