package cu

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

// The driver does not say which argument it refuses, nor why. This file finds out
// after a call has failed, and adds it to the error: calls that succeed cost no
// more.

// refused returns the driver's error in err, if it has that result and does not
// say yet what was wrong, or nil.
func refused(err error, r Result) *Error {
	var e *Error
	if !errors.As(err, &e) || e.Result != r || e.Detail != "" {
		return nil
	}
	return e
}

// noVariable adds the name of a variable to the error of a search for it.
func noVariable(err error, name string) error {
	if e := refused(err, ErrNotFound); e != nil {
		e.Detail = fmt.Sprintf("there is no variable %q", name)
	}
	return err
}

// noKernel adds to the error of a search the name of the kernel, and the names
// that its owner has, where the driver can list them.
func noKernel[T interface{ Name() string }](err error, name, owner string, list func() ([]T, error)) error {
	e := refused(err, ErrNotFound)
	if e == nil {
		return err
	}
	e.Detail = fmt.Sprintf("there is no kernel %q", name)
	if all, listErr := list(); listErr == nil {
		var names []string
		for _, k := range all {
			names = append(names, k.Name())
		}
		e.Detail += fmt.Sprintf("; the %s has %s", owner, listed(names, name))
	}
	return err
}

// How many names are listed, and how much of a long one.
const (
	maxListed  = 10
	maxSpelled = 100
)

// listed lists names, beginning with those that contain want.
func listed(names []string, want string) string {
	if len(names) == 0 {
		return "none"
	}
	unlike := func(name string) int {
		if strings.Contains(strings.ToLower(name), strings.ToLower(want)) {
			return 0
		}
		return 1
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(unlike(a)-unlike(b), cmp.Compare(a, b))
	})
	more := max(len(names)-maxListed, 0)
	names = names[:len(names)-more]
	for i, name := range names {
		if len(name) > maxSpelled {
			names[i] = name[:maxSpelled] + "…"
		}
	}
	text := strings.Join(names, ", ")
	if more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// An operand is memory that a copy or fill was to use. One of size 0 is not
// looked at.
type operand struct {
	name   string
	access Access // what it needs
	at     DevicePtr
	size   uint64
	unit   uint64   // the address must be a multiple of it, if not 0
	rows   string   // what is wrong with its rows, if anything
	ctx    *Context // the memory's, if not the stream's
}

func source(p DevicePtr, n uint64) operand {
	return operand{name: "source", access: ReadOnly, at: p, size: n}
}

func destination(p DevicePtr, n uint64) operand {
	return operand{name: "destination", access: ReadWrite, at: p, size: n}
}

// in returns o as memory of c.
func (o operand) in(c *Context) operand {
	o.ctx = c
	return o
}

// filled returns the memory that a fill sets: height rows of width elements.
func filled[T any](p DevicePtr, pitch, width, height uint64) operand {
	unit := unitOf[T]()
	over, bytes := bits.Mul64(width, unit)
	if over != 0 {
		return operand{}
	}
	side := DeviceSide(p, pitch)
	o := destination(side.touched(bytes, height, 1))
	o.unit = unit
	switch {
	case height <= 1:
	case pitch%unit != 0:
		o.rows = fmt.Sprintf("the pitch %d is not a multiple of %d, the size of an element", pitch, unit)
	case pitch < bytes:
		o.rows = fmt.Sprintf("rows of %d bytes overlap: their pitch is %d", bytes, pitch)
	}
	return o
}

// explain adds to the error of a copy or fill what is wrong with its operands.
func (s *Stream) explain(err error, operands ...operand) error {
	e := refused(err, ErrInvalidValue)
	if e == nil {
		return err
	}
	var wrong []string
	for _, o := range operands {
		o.ctx = cmp.Or(o.ctx, s.ctx)
		if w := o.wrong(); w != "" {
			wrong = append(wrong, w)
		}
	}
	e.Detail = strings.Join(wrong, "; ")
	return err
}

// wrong says what is wrong with the operand, or "" if nothing is or nothing is
// known.
func (o operand) wrong() string {
	a, err := o.ctx.PointerAttributes(o.at)
	switch {
	case err != nil || o.size == 0:
		return ""
	case o.at == 0:
		return fmt.Sprintf("the %s is 0x0, the address of closed memory", o.name)
	case o.unit > 1 && uint64(o.at)%o.unit != 0:
		return fmt.Sprintf("the %s %s is not a multiple of %d, the size of an element", o.name, o.at, o.unit)
	case o.rows != "":
		return o.rows
	case a.Type == 0:
		return fmt.Sprintf("the %s %s is not in memory that the driver knows", o.name, o.at)
	case a.Access&o.access != o.access:
		return fmt.Sprintf("access to the %s %s is %s; %s is needed", o.name, o.at, a.Access, o.access)
	}
	end := o.end(a)
	if room := uint64(end - o.at); room < o.size {
		return fmt.Sprintf("the %s %s+%d ends %d bytes past its allocation, which ends at %s", o.name, o.at, o.size, o.size-room, end)
	}
	return ""
}

// end returns where the allocation ends in which the operand begins, never before
// the operand. In reserved address space that is where nothing is mapped (known
// since CUDA 11.7; before, where the reservation ends).
func (o operand) end(a PointerAttributes) DevicePtr {
	end := a.RangeStart.Add(a.RangeSize)
	for at := o.at; ; {
		mapped := a.MappingStart.Add(a.MappingSize)
		switch {
		case mapped <= at || mapped >= end:
			return end
		case uint64(mapped-o.at) >= o.size:
			return mapped
		}
		var err error
		if a, err = o.ctx.PointerAttributes(mapped); err != nil || a.Type == 0 {
			return mapped
		}
		at = mapped
	}
}

// explain adds to the error of a launch which of its sizes is too large.
func (l *Launch) explain(err error) error {
	if e := cmp.Or(refused(err, ErrInvalidValue), refused(err, ErrLaunchOutOfResources)); e != nil {
		e.Detail = cmp.Or(l.wrongDimension(), l.wrongBlock())
	}
	return err
}

// wrongDimension says which dimension of the grid or block exceeds the device's
// limit, or returns "".
func (l *Launch) wrongDimension() string {
	g, b := l.cfg.Grid, l.cfg.Block
	for _, d := range [...]struct {
		what  string
		size  uint32
		limit Attribute
	}{
		{"the grid has %d blocks in X", g.X, AttributeMaxGridDimX},
		{"the grid has %d blocks in Y", g.Y, AttributeMaxGridDimY},
		{"the grid has %d blocks in Z", g.Z, AttributeMaxGridDimZ},
		{"a block has %d threads in X", b.X, AttributeMaxBlockDimX},
		{"a block has %d threads in Y", b.Y, AttributeMaxBlockDimY},
		{"a block has %d threads in Z", b.Z, AttributeMaxBlockDimZ},
	} {
		most, err := l.f.ctx.Device().Attribute(d.limit)
		if err == nil && (d.size == 0 || uint64(d.size) > uint64(most)) {
			return fmt.Sprintf(d.what+"; the device takes 1 to %d", d.size, most)
		}
	}
	return ""
}

// wrongBlock says which limit of the device or the kernel a block exceeds, or
// returns "". Each of its dimensions is within the device's limit.
func (l *Launch) wrongBlock() string {
	b, name := l.cfg.Block, l.f.name
	threads := uint64(b.X) * uint64(b.Y) * uint64(b.Z)
	most, err1 := l.f.ctx.Device().Attribute(AttributeMaxThreadsPerBlock)
	a, err2 := l.f.Attributes()
	switch {
	case err1 != nil || err2 != nil:
		return ""
	case threads > uint64(most):
		return fmt.Sprintf("a block has %d × %d × %d = %d threads; the device takes at most %d", b.X, b.Y, b.Z, threads, most)
	case threads > uint64(a.MaxThreadsPerBlock):
		return fmt.Sprintf("a block has %d threads; kernel %s takes at most %d, because of its registers or how it was compiled", threads, name, a.MaxThreadsPerBlock)
	case uint64(l.cfg.Shared) > uint64(a.MaxDynamicShared):
		return fmt.Sprintf("a block adds %d bytes of shared memory to kernel %s; the limit is %d%s", l.cfg.Shared, name, a.MaxDynamicShared, l.moreShared(a))
	}
	return ""
}

// moreShared says how much shared memory a launch could add after
// SetMaxDynamicShared.
func (l *Launch) moreShared(a FunctionAttributes) string {
	most, err := l.f.ctx.Device().Attribute(AttributeMaxSharedMemoryPerBlockOptin)
	if err != nil || most-a.Shared <= a.MaxDynamicShared {
		return ""
	}
	return fmt.Sprintf("; SetMaxDynamicShared can raise it to %d", most-a.Shared)
}
