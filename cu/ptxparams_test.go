package cu_test

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// heads has what PTX of several compilers has before a kernel's body.
const heads = `.version 7.4
.target sm_75
.address_size 64
/* .visible .entry scale(.param .f64 x) */
.visible .entry scale(
	.param .u64 .ptr .global .align 4 out, // .f32
	.param .f32 by /* , .param .u32 n */,
	.param .u32 n,
	.param .b32 bits,
	.param .align 4 .b8 pair[8]
)
{
	.reg .f32 %f<2>;
	.reg .b64 %p<2>;
	ld.param.u64 %p0, [out];
	ld.param.f32 %f0, [by];
	st.global.f32 [%p0], %f0;
	ret;
}
.visible .entry none() { ret; }
`

// strange is heads beside what looks like a kernel or a comment, and is none. The compiler of libcuda
// does not take all of it.
const strange = "// .entry remark(.param .f32 x) {}\n" + heads + `.pragma "/* no comment";
.entry last() { ret; }
`

// An argument of another kind than PTX says is refused, however the code came: int32(2) for an f32 would
// be 2.8e-45. Types without a meaning take either.
func TestArgumentsOfAnotherKind(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	out := alloc(t, ctx, 4)
	ptx := []byte(heads)
	if cutest.Kind() == cu.Soft {
		ptx = []byte(strange)
	}
	file := filepath.Join(t.TempDir(), "heads.ptx")
	require.NoError(t, os.WriteFile(file, ptx, 0o600))
	fromFile := untilEnd(t, ok(ctx.LoadModuleFile(file))(t))
	modules := map[string]interface {
		Function(string) (*cu.Function, error)
	}{"memory": load(t, ctx, ptx), "file": fromFile}
	lib, err := ctx.Device().Driver().LoadLibrary(ptx)
	if !orTooOld(t, ctx.Device().Driver(), "cuLibraryLoadData", err) {
		t.Cleanup(func() { require.NoError(t, lib.Close()) })
		modules["library"] = inContext{lib, ctx}
	}
	type pair struct{ A, B int32 }
	for name, m := range modules {
		f := ok(m.Function("scale"))(t, name)
		require.Equal(t, []string{"u64", "f32", "u32", "b32", ""}, f.ParamTypes(), name)
		stream := ctx.NullStream()
		require.NoError(t, f.Launch(stream, one, out, float32(2), int32(1), uint32(1), pair{}))
		require.Equal(t, []uint32{math.Float32bits(2)}, words(t, ctx, out.Ptr(), 1), name)
		require.NoError(t, f.Launch(stream, one, uint64(out.Ptr()), float32(2), uint32(1), float32(1), pair{}))

		for i, args := range [][]any{
			{1.5, float32(2), int32(1), uint32(1), pair{}},
			{out, int32(2), int32(1), uint32(1), pair{}},
			{out, float32(2), float32(1), uint32(1), pair{}},
		} {
			err := f.Launch(stream, one, args...)
			var wrong *cu.ArgumentError
			require.ErrorAs(t, err, &wrong, name)
			require.Equal(t, i, wrong.Index, name)
		}
		l := ok(f.Prepare(one, out, float32(2), int32(1), uint32(1), pair{}))(t)
		require.ErrorContains(t, l.Set(1, int32(2)), "args[1]: int32 is of another kind: the parameter is a float (f32); pass a float32")
		require.NoError(t, l.Set(1, float32(3)))
		none := ok(m.Function("none"))(t)
		require.Empty(t, none.ParamTypes())
		require.NotNil(t, none.ParamTypes())
	}
	require.NoError(t, ctx.Synchronize(t.Context()))
}

// inContext has a library's functions in a context.
type inContext struct {
	lib *cu.Library
	ctx *cu.Context
}

func (l inContext) Function(name string) (*cu.Function, error) {
	k, err := l.lib.Kernel(name)
	if err != nil {
		return nil, err
	}
	return k.Function(l.ctx)
}
