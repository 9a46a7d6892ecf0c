package vmm_test

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/vmm"
)

// functions are all exported functions of the package. What takes a device, a driver
// or a context refuses nil (true); the others do as they are told.
var functions = map[string]struct {
	f       any
	refuses bool
}{
	"AlignUp":             {vmm.AlignUp, false},
	"Create":              {vmm.Create, true},
	"Granularity":         {vmm.Granularity, true},
	"Import":              {vmm.Import, true},
	"ImportAllocation":    {vmm.ImportAllocation, true},
	"ImportFabric":        {vmm.ImportFabric, true},
	"New":                 {vmm.New, true},
	"NewGeneration":       {vmm.NewGeneration, false},
	"NewWait":             {vmm.NewWait, true},
	"OnStep":              {vmm.OnStep, false},
	"Reserve":             {vmm.Reserve, true},
	"WithAccess":          {vmm.WithAccess, false},
	"WithCapacity":        {vmm.WithCapacity, false},
	"WithChunkSize":       {vmm.WithChunkSize, false},
	"WithFabric":          {vmm.WithFabric, false},
	"WithReservation":     {vmm.WithReservation, false},
	"WithLentReservation": {vmm.WithLentReservation, false},
	"WithReexport":        {vmm.WithReexport, false},
	"WithStack":           {vmm.WithStack, false},
	"WithPeers":           {vmm.WithPeers, false},
	"WouldWait":           {vmm.WouldWait, false},
}

// types are all exported types with methods, as zero values that nobody has made.
var types = map[string]any{
	"Allocation":      &vmm.Allocation{},
	"Buffer":          &vmm.Buffer{},
	"Descriptor":      &vmm.Descriptor{},
	"DescriptorError": &vmm.DescriptorError{},
	"Hold":            &vmm.Hold{},
	"Loan":            &vmm.Loan{},
	"Mapping":         &vmm.Mapping{},
	"Op":              new(vmm.Op),
	"Reservation":     &vmm.Reservation{},
	"View":            &vmm.View{},
}

// Nil and the zero values of all types, as receivers and as arguments, are errors or
// do no harm.
func TestNilIsAnErrorOrHarmless(t *testing.T) {
	cutest.Device(t)
	for name, c := range functions {
		t.Run(name, func(t *testing.T) {
			err := callWithZeros(t, reflect.ValueOf(c.f))
			require.Equal(t, c.refuses, errors.Is(err, vmm.ErrNil), "%v", err)
		})
	}
	for name, zero := range types {
		v := reflect.ValueOf(zero)
		callAll(t, name+", zero", v)
		if v.Elem().NumMethod() == 0 { // else nil has no methods
			callAll(t, name+", nil", reflect.Zero(v.Type()))
		}
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
			case "Close", "Unwrap":
				require.NoError(t, err)
			case "Grow", "NewView", "Export", "ExportRange", "ExportFabric", "Lend", "Hold", "Load", "Store":
				require.ErrorIs(t, err, cu.ErrClosed)
			case "GrowWait", "SetAccess": // closed, and nil as well
				require.True(t, errors.Is(err, cu.ErrClosed) || errors.Is(err, vmm.ErrNil), "%v", err)
			case "Map", "Check":
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
	b, dev := bookkept(t)
	leavesNothing(t, b, dev)
	g := granularity(t, dev)
	buf, err := vmm.New(dev, g, nil, vmm.WithCapacity(2*g), vmm.OnStep(nil), vmm.WithReservation(nil))
	require.NoError(t, err)
	loan, err := buf.Lend()
	require.NoError(t, err)
	require.NoError(t, loan.Close())
	view, err := buf.NewView(cu.ReadOnly)
	require.NoError(t, err)
	r := reserve(t, dev, g)
	a, err := vmm.Create(dev, g)
	require.NoError(t, err)
	m, err := r.Map(0, a)
	require.NoError(t, err)
	owed := b.owed()

	var none context.Context
	require.ErrorIs(t, buf.GrowWait(none, 2*g), vmm.ErrNil)
	require.ErrorIs(t, m.SetAccess(cu.ReadWrite, dev, nil), vmm.ErrNil)
	_, err = r.Map(0, nil)
	require.ErrorIs(t, err, vmm.ErrNil)
	_, err = r.Map(0, &vmm.Allocation{})
	require.ErrorIs(t, err, cu.ErrClosed)
	_, err = vmm.NewWait(none, dev, g)
	require.ErrorIs(t, err, vmm.ErrNil)
	_, err = vmm.New(dev, g, vmm.WithReservation(&vmm.Reservation{}))
	require.ErrorIs(t, err, vmm.ErrCapacity)
	_, err = vmm.Import(dev, buf.Describe(), nil)
	require.ErrorIs(t, err, vmm.ErrDescriptor)
	_, err = vmm.Import(dev, buf.Describe(), make([]*os.File, 1), nil)
	require.ErrorIs(t, err, os.ErrInvalid)
	_, err = vmm.ImportAllocation(dev, nil, g)
	require.ErrorIs(t, err, os.ErrInvalid)
	require.Equal(t, owed, b.owed())
	require.Equal(t, g, buf.Size())

	for _, c := range []io.Closer{m, a, r, view, buf} {
		require.NoError(t, c.Close())
		callAll(t, "closed", reflect.ValueOf(c))
	}
}

// The tables above have all that is exported.
func TestNothingExportedIsMissing(t *testing.T) {
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), f.Name(), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range parsed.Decls {
			requireInTables(t, d)
		}
	}
}

func requireInTables(t *testing.T, d ast.Decl) {
	t.Helper()
	f, is := d.(*ast.FuncDecl)
	if !is || !f.Name.IsExported() {
		return
	}
	if f.Recv == nil {
		require.Contains(t, functions, f.Name.Name)
		return
	}
	of := f.Recv.List[0].Type
	if star, is := of.(*ast.StarExpr); is {
		of = star.X
	}
	if name := of.(*ast.Ident).Name; ast.IsExported(name) {
		require.Contains(t, types, name)
	}
}
