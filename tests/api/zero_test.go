package api

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/channel"
	"github.com/gpufd/gpufd/counter"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/fence"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/keeper/server"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
	"github.com/gpufd/gpufd/weights"
)

// zeros are zero values of all exported types that have methods. Those of package cu are made by it, or nil, which its
// TestNilIsClosed has, but for a Slice.
var zeros = []any{
	new(sock.Conn), new(sock.Error), new(sock.LostError), new(fence.Kind), new(fence.Error), new(sock.Listener), new(sock.Peer), new(sock.Policy), new(sock.Process), new(sock.Record), new(sock.NotAdmittedError),
	new(share.Attachment), new(share.Current), new(share.Descriptors), new(share.EventKind), new(share.Lease),
	new(share.Legacy), new(share.Offer), new(share.OfferInfo), new(share.Server),
	new(counter.Counter), new(cu.Slice[byte]),
	new(channel.Frame), new(channel.Slot), new(channel.WriterLostError), new(channel.Policy), new(channel.Reader), new(channel.Writer),
	new(weights.Tensor), new(weights.TornError), new(weights.Update),
	new(keeper.Attached), new(keeper.Client), new(server.Server), new(keeper.Use),
	new(vmm.Allocation), new(vmm.Buffer), new(vmm.Descriptor), new(vmm.DescriptorError), new(vmm.Hold), new(vmm.Loan), new(vmm.Mapping),
	new(vmm.Reservation), new(vmm.View),
}

// nils are zeros whose nil pointers do what their zero values do.
var nils = []any{
	new(share.Attachment), new(share.Lease), new(share.Legacy), new(share.Offer), new(share.Server),
	new(counter.Counter),
	new(keeper.Client), new(server.Server),
}

// ends are methods that end a thing, and do nothing where there is none.
var ends = []string{"Close", "CloseNow", "Drop", "Remove", "Unmap"}

// parts are methods that return a part of a thing, which the zero value has: that of no elements.
var parts = []string{"Slice"}

// TestZeroValuesDoNotPanic calls every method of every zero value, with zero arguments. None panics or waits.
// If the type has Close, a call that can fail fails, and those in nils do the same where
// they are nil. A channel that says that something is over says so.
func TestZeroValuesDoNotPanic(t *testing.T) {
	for _, zero := range zeros {
		typ := reflect.TypeOf(zero)
		_, closes := typ.MethodByName("Close")
		_, memory := typ.MethodByName("CloseNow") // whose Release is Close with a context
		nilIsClosed := slices.ContainsFunc(nils, func(a any) bool { return reflect.TypeOf(a) == typ })
		for i := range typ.NumMethod() {
			name := typ.Method(i).Name
			t.Run(typ.Elem().String()+"."+name, func(t *testing.T) {
				err, isError := callZero(t, name, reflect.New(typ.Elem()).Method(i))
				if closes && isError && !slices.Contains(ends, name) && !slices.Contains(parts, name) && !(memory && name == "Release") {
					require.Error(t, err)
				}
				if nilIsClosed {
					nilErr, _ := callZero(t, name, reflect.Zero(typ).Method(i))
					require.Equal(t, err, nilErr)
					if err != nil && name != "Put" { // which looks at its parts first
						require.True(t, errors.Is(err, share.ErrClosed) || errors.Is(err, sock.ErrClosed) || errors.Is(err, cu.ErrClosed), err)
					}
				}
			})
		}
	}
}

// callZero calls f, which has that name, and returns its last result if that is an error.
func callZero(t *testing.T, name string, f reflect.Value) (err error, isError bool) {
	t.Helper()
	var args []reflect.Value
	for i := range f.Type().NumIn() {
		switch in := f.Type().In(i); {
		case in == reflect.TypeFor[context.Context]():
			args = append(args, reflect.ValueOf(t.Context()))
		case !f.Type().IsVariadic() || i < f.Type().NumIn()-1:
			args = append(args, reflect.Zero(in))
		}
	}
	type outcome struct {
		results  []reflect.Value
		panicked any
	}
	done := make(chan outcome, 1)
	go func() {
		var o outcome
		defer func() { o.panicked = recover(); done <- o }()
		o.results = f.Call(args)
	}()
	select {
	case o := <-done:
		require.Nil(t, o.panicked, "it panics")
		for _, r := range o.results {
			if r.Kind() == reflect.Chan && name != "Notices" {
				value, _ := r.TryRecv()
				require.True(t, value.IsValid(), "its channel is open")
			}
		}
		if n := len(o.results); n > 0 && f.Type().Out(n-1) == reflect.TypeFor[error]() {
			err, _ = o.results[n-1].Interface().(error)
			return err, true
		}
	case <-time.After(time.Minute):
		t.Fatal("it waits")
	}
	return nil, false
}

// A type that is exported and has methods is in zeros.
func TestZerosAreAll(t *testing.T) {
	var have []string
	for _, zero := range zeros {
		have = append(have, fmt.Sprintf("%T", zero))
	}
	eachFunction(t, []string{"sock", "share", "counter", "channel", "weights", "keeper", "vmm"}, func(pkg string, f *ast.FuncDecl) {
		if of, public := receiver(f); public && of != "" {
			require.Contains(t, have, "*"+pkg+"."+strings.TrimSuffix(of, "."), "a method %s", f.Name.Name)
		}
	})
}
