package cu_test

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// promoted are methods of the Memory in a PitchedMemory, which Go looks for before it calls.
var promoted = map[string]bool{"*cu.PitchedMemory.Ptr": true, "*cu.PitchedMemory.Size": true, "*cu.PitchedMemory.IPCHandle": true}

// notClosed are types with methods of pointers that have no end of their own.
var notClosed = map[string]string{
	"Driver": "comes from Open", "Device": "comes from a driver",
	"FabricHandle": "is a value", "IPCHandle": "is a value", "IPCEventHandle": "is a value", "PoolPointer": "is a value",
}

// Every method of what can be closed takes a nil receiver and zero arguments: it answers
// ErrClosed, or zero where it has no error, and Close does nothing.
func TestNilIsClosed(t *testing.T) {
	failure := reflect.TypeFor[error]()
	seen := map[string]bool{}
	for _, owner := range []any{
		(*cu.Context)(nil), (*cu.Stream)(nil), (*cu.Event)(nil), (*cu.Memory)(nil), (*cu.PitchedMemory)(nil),
		(*cu.StreamMemory)(nil), (*cu.IPCMemory)(nil), (*cu.HostMemory)(nil), (*cu.HostRegistration)(nil),
		(*cu.Graph)(nil), (*cu.GraphExec)(nil), (*cu.Module)(nil), (*cu.Function)(nil), (*cu.Library)(nil),
		(*cu.ExternalMemory)(nil), (*cu.ExternalBuffer)(nil),
		(*cu.Kernel)(nil), (*cu.Pool)(nil), (*cu.MemHandle)(nil), (*cu.StreamWait)(nil), (*cu.Launch)(nil),
	} {
		v := reflect.ValueOf(owner)
		seen[v.Type().Elem().Name()] = true
		for i := range v.NumMethod() {
			name := v.Type().String() + "." + v.Type().Method(i).Name
			if promoted[name] {
				continue
			}
			results := callWith(t, name, v.Method(i), nil)
			for _, r := range results {
				switch {
				case r.Kind() == reflect.Chan:
					_, open := r.Recv()
					assert.False(t, open, "%s: it is not closed", name)
				case r.Type() != failure:
					assert.True(t, r.IsZero(), "%s: %v", name, r)
				case v.Type().Method(i).Name == "Close":
					assert.True(t, r.IsNil(), name)
				default:
					err, _ := r.Interface().(error)
					assert.ErrorIs(t, err, cu.ErrClosed, name)
				}
			}
		}
	}
	t.Run("no type is left out", func(t *testing.T) {
		if _, err := os.Stat("closed_test.go"); err != nil {
			t.Skip("takes the sources of gpufd")
		}
		for _, name := range ownersWithMethods(t) {
			assert.True(t, seen[name] || notClosed[name] != "", "%s has methods of a pointer, and is not in this test", name)
		}
	})
}

// ownersWithMethods are the exported types that have methods of pointers, but for errors.
func ownersWithMethods(t *testing.T) (names []string) {
	t.Helper()
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		for _, d := range f.Decls {
			method, ok := d.(*ast.FuncDecl)
			if !ok || method.Recv == nil || !method.Name.IsExported() {
				continue
			}
			pointer, ok := method.Recv.List[0].Type.(*ast.StarExpr)
			if !ok {
				continue
			}
			name := pointer.X.(*ast.Ident).Name
			if ast.IsExported(name) && !strings.HasSuffix(name, "Error") && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	require.Contains(t, names, "Stream")
	return names
}

// owners makes one of each thing that can be closed, the context last, by type.
func owners(t *testing.T, dev *cu.Device) (all []any) {
	t.Helper()
	ctx, err := dev.PrimaryContext()
	require.NoError(t, err)
	add := func(o any, err error) any {
		require.NoError(t, err)
		all = append(all, o)
		return o
	}
	s := add(ctx.NewStream()).(*cu.Stream)
	add(ctx.NewEvent(cu.EventDefault))
	add(ctx.Alloc(64))
	add(ctx.AllocPitch(16, 4, 4))
	add(s.AllocAsync(64))
	add(ctx.AllocHost(64, 0))
	add(ctx.RegisterHost(make([]byte, 4096), 0))
	size := granularity(t, dev)
	physical := add(dev.CreateMemory(size, cu.HandleFD)).(*cu.MemHandle)
	f := ok(physical.Export())(t)
	external := add(ctx.ImportExternal(f, size, 0)).(*cu.ExternalMemory)
	require.NoError(t, f.Close())
	add(external.Map(0, 4096))
	g := add(ctx.NewGraph()).(*cu.Graph)
	add(g.Instantiate(0))
	m := add(ctx.LoadModule(various(t))).(*cu.Module)
	add(m.Function("nothing"))
	lib, err := dev.Driver().LoadLibrary(various(t))
	if !lacks(t, dev.Driver(), "cuLibraryLoadData", err) {
		add(lib, err)
		add(lib.Kernel("nothing"))
	}
	add(dev.NewPool(cu.PoolOptions{Types: cu.HandleFD}))
	add(ctx, nil)
	return all
}

// closeAll closes what owners made, in the order in which it was made.
func closeAll(t *testing.T, all []any) {
	t.Helper()
	for _, o := range all {
		if c, ok := o.(interface{ Close() error }); ok {
			require.NoError(t, c.Close(), "%T", o)
		}
	}
}

// Invariant 5: nothing reaches the driver through what is closed, be it the receiver of a method
// or an argument.
func TestUseAfterCloseIsErrClosed(t *testing.T) {
	s, drv, dev := spied(t)
	open, closed := owners(t, dev), owners(t, dev)
	closeAll(t, closed)
	args, gone := map[reflect.Type]reflect.Value{}, map[reflect.Type]reflect.Value{}
	for i, o := range open {
		args[reflect.TypeOf(o)], gone[reflect.TypeOf(o)] = reflect.ValueOf(o), reflect.ValueOf(closed[i])
	}
	withDevice := maps.Clone(args)
	withDevice[reflect.TypeOf(dev)] = reflect.ValueOf(dev)
	wantClosed := func(owner reflect.Value, instead reflect.Type) {
		for i := range owner.NumMethod() {
			name, method := owner.Type().Method(i).Name, owner.Method(i)
			if name == "Close" || name == "IfGivenUp" || instead != nil && !takes(method.Type(), instead) {
				continue
			}
			given := maps.Clone(withDevice)
			if instead != nil {
				given[instead] = gone[instead]
			}
			before := s.calls()
			results := callWith(t, owner.Type().String()+"."+name, method, given)
			if name != "Launch" && name != "AddChild" { // which first ask the live kernel, and copy the live child
				assert.Equal(t, before, s.calls(), "%s.%s reached the driver", owner.Type(), name)
			}
			for _, r := range results {
				if err, ok := r.Interface().(error); ok || r.Type() == reflect.TypeFor[error]() {
					assert.ErrorIs(t, err, cu.ErrClosed, "%s.%s, closed: %v", owner.Type(), name, instead)
				}
			}
		}
	}
	for typ, owner := range args {
		wantClosed(gone[typ], nil)
		for other := range args {
			wantClosed(owner, other)
		}
		wantClosed(reflect.ValueOf(dev), typ)
		wantClosed(reflect.ValueOf(drv), typ)
	}
	closeAll(t, open)
}

// takes reports whether a method has a parameter of that type.
func takes(method, param reflect.Type) bool {
	for i := range method.NumIn() {
		if method.In(i) == param {
			return true
		}
	}
	return false
}

// A wait that was never queued is over, and a launch that was never prepared runs nothing.
func TestZeroStreamWaitAndLaunch(t *testing.T) {
	var l cu.Launch
	require.ErrorIs(t, l.Run(nil), cu.ErrClosed)
	require.ErrorIs(t, l.Set(0, 1), cu.ErrClosed)
	require.Nil(t, l.Function())
	var w cu.StreamWait
	<-w.Done()
	require.ErrorIs(t, w.Result(), cu.ErrClosed)
}

// callWith calls a method with the arguments of those types, and zeros for the others.
func callWith(t *testing.T, name string, method reflect.Value, given map[reflect.Type]reflect.Value) (results []reflect.Value) {
	t.Helper()
	var args []reflect.Value
	for i := range method.Type().NumIn() {
		if method.Type().IsVariadic() && i == method.Type().NumIn()-1 {
			break
		}
		in := method.Type().In(i)
		arg, ok := given[in]
		switch {
		case in == reflect.TypeFor[context.Context]():
			arg = reflect.ValueOf(t.Context())
		case !ok:
			arg = reflect.Zero(in)
		}
		args = append(args, arg)
	}
	defer func() {
		if r := recover(); r != nil {
			t.Errorf("%s panics: %v", name, r)
		}
	}()
	return method.Call(args)
}

// A context that is nil is closed, also as an argument, and so is memory.
func TestNilArguments(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	require.ErrorIs(t, ctx.EnablePeerAccess(nil), cu.ErrClosed)
	require.ErrorIs(t, (*cu.Context)(nil).EnablePeerAccess(ctx), cu.ErrClosed)
	require.ErrorIs(t, (*cu.Context)(nil).DisablePeerAccess(ctx), cu.ErrClosed)
	require.ErrorIs(t, errOf(cu.HostSlice[uint32](nil)), cu.ErrClosed)
}
