package vmm_test

import (
	"context"
	"errors"
	"io"
	"os"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/vmm"
)

// functions take a device or a driver, and refuse nil.
var functions = map[string]any{
	"Create": vmm.Create, "CreateHost": vmm.CreateHost, "ImportHost": vmm.ImportHost, "Granularity": vmm.Granularity, "Import": vmm.Import, "ImportAllocation": vmm.ImportAllocation,
	"ImportFabric": vmm.ImportFabric, "New": vmm.New, "NewWait": vmm.NewWait, "Reserve": vmm.Reserve,
}

// Nil and the zero values of all types, as receivers and as arguments, are errors or
// do no harm.
func TestNilIsAnErrorOrHarmless(t *testing.T) {
	cutest.Device(t)
	for name, f := range functions {
		require.ErrorIs(t, callWithZeros(t, reflect.ValueOf(f)), vmm.ErrNil, name)
	}
	for _, zero := range []any{
		&vmm.Allocation{}, &vmm.Buffer{}, &vmm.DescriptorError{}, &vmm.Hold{}, &vmm.Loan{}, &vmm.Mapping{}, &vmm.Reservation{}, &vmm.View{},
	} {
		v := reflect.ValueOf(zero)
		callAll(t, v.Type().String()+", zero", v)
		callAll(t, v.Type().String()+", nil", reflect.Zero(v.Type()))
	}
}

// callAll calls all methods of v with zeros. What is no query and not Close is an
// error.
func callAll(t *testing.T, name string, v reflect.Value) {
	for i := range v.NumMethod() {
		method := v.Type().Method(i).Name
		t.Run(name+", "+method, func(t *testing.T) {
			err := callWithZeros(t, v.Method(i))
			if at, ok := v.Interface().(interface{ Ptr() cu.DevicePtr }); ok {
				require.Zero(t, at.Ptr())
			}
			switch method {
			case "Close", "CloseNow", "Release", "Unmap", "Unwrap":
				require.NoError(t, err)
			case "Grow", "NewView", "Export", "ExportRange", "ExportFabric", "Lend", "Hold", "Load", "Store", "SetHostAccess":
				require.ErrorIs(t, err, cu.ErrClosed)
			case "SetAccess": // closed, and nil as well
				require.True(t, errors.Is(err, cu.ErrClosed) || errors.Is(err, vmm.ErrNil), "%v", err)
			case "Map":
				require.ErrorIs(t, err, vmm.ErrNil)
			}
		})
	}
}

// callWithZeros calls f with zeros, and with a zero for what it takes any number of.
// It closes what it gets and returns its error.
func callWithZeros(t *testing.T, f reflect.Value) (err error) {
	t.Helper()
	var args []reflect.Value
	for i := range f.Type().NumIn() {
		in := f.Type().In(i)
		if f.Type().IsVariadic() && i == f.Type().NumIn()-1 {
			in = in.Elem()
		}
		if in == reflect.TypeFor[context.Context]() {
			args = append(args, reflect.ValueOf(t.Context()))
			continue
		}
		args = append(args, reflect.Zero(in))
	}
	for _, out := range f.Call(args) {
		if out.Kind() == reflect.Pointer && out.IsNil() {
			continue
		}
		switch out := out.Interface().(type) {
		case error:
			err = out
		case []*os.File:
			closeFiles(t, out)
		case io.Closer:
			require.NoError(t, out.Close())
		}
	}
	return err
}

// Nil as an argument of what is open changes nothing there.
func TestNilArgumentsOfWhatIsOpen(t *testing.T) {
	b, dev, _, g := tidy(t)
	buf := ok(vmm.New(dev, g, nil, vmm.WithCapacity(2*g), vmm.WithReservation(nil)))(t)
	require.NoError(t, ok(buf.Lend())(t).Close())
	view := ok(buf.NewView(cu.ReadOnly))(t)
	r := reserve(t, dev, g)
	a := ok(vmm.Create(dev, g))(t)
	m := ok(r.Map(0, a))(t)
	owed := b.owed()

	var none context.Context
	require.ErrorIs(t, m.SetAccess(cu.ReadWrite, dev, nil), vmm.ErrNil)
	require.ErrorIs(t, errOf(r.Map(0, nil)), vmm.ErrNil)
	require.ErrorIs(t, errOf(r.Map(0, &vmm.Allocation{})), cu.ErrClosed)
	require.ErrorIs(t, errOf(vmm.NewWait(none, dev, g)), vmm.ErrNil)
	require.ErrorIs(t, errOf(vmm.New(dev, g, vmm.WithReservation(&vmm.Reservation{}))), vmm.ErrCapacity)
	require.ErrorIs(t, errOf(vmm.Import(dev, buf.Describe(), nil)), vmm.ErrDescriptor)
	require.ErrorIs(t, errOf(vmm.Import(dev, buf.Describe(), make([]*os.File, 1), nil)), os.ErrInvalid)
	require.ErrorIs(t, errOf(vmm.ImportAllocation(dev, nil, g)), os.ErrInvalid)
	require.Equal(t, owed, b.owed())
	require.Equal(t, g, buf.Size())

	for _, c := range []io.Closer{m, a, r, view, buf} {
		require.NoError(t, c.Close())
		callAll(t, "closed", reflect.ValueOf(c))
	}
}
