package cu_test

import (
	"context"
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// promoted are methods of the Memory in a PitchedMemory, which Go looks for before it calls.
var promoted = map[string]bool{"*cu.PitchedMemory.Ptr": true, "*cu.PitchedMemory.Size": true, "*cu.PitchedMemory.IPCHandle": true}

// Every method of what can be closed takes a nil receiver and zero arguments: it answers
// ErrClosed, or zero where it has no error, and Close does nothing.
func TestNilIsClosed(t *testing.T) {
	failure := reflect.TypeFor[error]()
	for _, owner := range []any{
		(*cu.Context)(nil), (*cu.Stream)(nil), (*cu.Event)(nil), (*cu.Memory)(nil), (*cu.PitchedMemory)(nil),
		(*cu.StreamMemory)(nil), (*cu.IPCMemory)(nil), (*cu.HostMemory)(nil), (*cu.HostRegistration)(nil),
		(*cu.Graph)(nil), (*cu.GraphExec)(nil), (*cu.Module)(nil), (*cu.Function)(nil), (*cu.Library)(nil),
		(*cu.Kernel)(nil), (*cu.Pool)(nil), (*cu.MemHandle)(nil),
	} {
		v := reflect.ValueOf(owner)
		for i := range v.NumMethod() {
			name := v.Type().String() + "." + v.Type().Method(i).Name
			if promoted[name] {
				continue
			}
			results := callWithZeros(t, name, v.Method(i))
			for _, r := range results {
				switch {
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
}

func callWithZeros(t *testing.T, name string, method reflect.Value) (results []reflect.Value) {
	t.Helper()
	var args []reflect.Value
	for i := range method.Type().NumIn() {
		if method.Type().IsVariadic() && i == method.Type().NumIn()-1 {
			break
		}
		in := method.Type().In(i)
		arg := reflect.Zero(in)
		if in == reflect.TypeFor[context.Context]() {
			arg = reflect.ValueOf(t.Context())
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
	_, err := cu.HostSlice[uint32](nil)
	require.ErrorIs(t, err, cu.ErrClosed)
}
