package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/gpufd/gpufd/cu"
)

// dim is a flag of X, X,Y or X,Y,Z.
type dim cu.Dim3

var errDim = errors.New("want X, X,Y or X,Y,Z, each a whole number from 1 to 4294967295")

// Set reads up to three numbers; those that are left out are 1.
func (d *dim) Set(s string) error {
	sizes := [3]uint32{1, 1, 1}
	parts := strings.Split(s, ",")
	if len(parts) > len(sizes) {
		return errDim
	}
	for i, p := range parts {
		v, err := strconv.ParseUint(p, 10, 32)
		if err != nil || v == 0 {
			return errDim
		}
		sizes[i] = uint32(v)
	}
	*d = dim{X: sizes[0], Y: sizes[1], Z: sizes[2]}
	return nil
}

// String leaves out what is 1 at the end.
func (d *dim) String() string {
	switch {
	case d.Z > 1:
		return fmt.Sprintf("%d,%d,%d", d.X, d.Y, d.Z)
	case d.Y > 1:
		return fmt.Sprintf("%d,%d", d.X, d.Y)
	}
	return strconv.FormatUint(uint64(d.X), 10)
}

// all lists the sizes.
func (d dim) all() []uint32 { return []uint32{d.X, d.Y, d.Z} }
