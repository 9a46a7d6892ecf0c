package cu_test

import (
	"encoding/binary"
	"errors"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

type pair struct {
	A uint32
	B uint64
}

// stored are arguments of every kind for the kernel store.
func stored(out any) []any {
	return []any{out, uint8(0xa1), int16(-2), int32(-3), uint64(1) << 60, float32(1.5), math.Pi, [3]uint32{4, 5, 6}, pair{7, 8}}
}

// wasStored is what the kernel store makes of stored.
func wasStored() []byte {
	le := binary.LittleEndian
	b := make([]byte, 64)
	b[0] = 0xa1
	le.PutUint16(b[2:], 0xfffe)
	le.PutUint32(b[4:], 0xfffffffd)
	le.PutUint64(b[8:], 1<<60)
	le.PutUint32(b[16:], math.Float32bits(1.5))
	le.PutUint64(b[24:], math.Float64bits(math.Pi))
	for i := range 3 {
		le.PutUint32(b[32+4*i:], uint32(4+i))
	}
	le.PutUint32(b[48:], 7)
	le.PutUint64(b[56:], 8)
	return b
}

// counted reads the counter of testdata.
func counted(t testing.TB, m *cu.Module) []uint32 {
	t.Helper()
	p, _, err := m.Global("counter")
	require.NoError(t, err)
	return words(t, m.Context(), p, 1)
}

// zeroed is memory of n zeros.
func zeroed(t testing.TB, ctx *cu.Context, n uint64) *cu.Memory {
	t.Helper()
	m := alloc(t, ctx, n)
	require.NoError(t, cu.Fill(ctx, m.Ptr(), uint8(0), n))
	return m
}

func TestArgumentsOfEveryType(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	f := function(t, ctx, "store")
	for _, by := range []string{"memory", "address"} {
		mem := zeroed(t, ctx, 64)
		var out any = mem
		if by == "address" {
			out = mem.Ptr()
		}
		require.NoError(t, f.Launch(ctx.NullStream(), one, stored(out)...))
		require.Equal(t, wasStored(), readBack[byte](t, ctx, mem.Ptr(), 64), by)
	}
}

func TestParams(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	p, err := function(t, ctx, "store").Params()
	if orTooOld(t, ctx.Device().Driver(), "cuFuncGetParamInfo", err) {
		return
	}
	require.Equal(t, []cu.Param{{0, 8}, {8, 1}, {10, 2}, {12, 4}, {16, 8}, {24, 4}, {32, 8}, {40, 12}, {56, 16}}, p)
	require.Empty(t, ok(function(t, ctx, "nothing").Params())(t))
}

// Wrong arguments are refused, by name, before the driver sees them.
func TestWrongArguments(t *testing.T) {
	spy, drv, _, ctx := spiedContext(t)
	f := function(t, ctx, "shared")
	spy.Fail("cuLaunchKernel", cu.ErrInvalidValue)
	closed := alloc(t, ctx, 4)
	require.NoError(t, closed.Close())
	out, counts := cu.DevicePtr(0), drv.Caller().Library().Has("cuFuncGetParamInfo")
	for name, c := range map[string]struct {
		index   int
		counted bool // only by drivers that know the parameters
		says    string
		args    []any
	}{
		"too few":   {-1, true, "3 arguments, of [8 4 4] bytes; 2 were given", []any{out, uint32(1)}},
		"too many":  {-1, true, "4 were given", []any{out, uint32(1), uint32(2), uint32(3)}},
		"too large": {2, true, "uint64 has 8 bytes; the parameter has 4", []any{out, uint32(1), uint64(2)}},
		"too small": {0, true, "uint32 has 4 bytes; the parameter has 8", []any{uint32(0), uint32(1), uint32(2)}},
		"int":       {1, false, "int is no argument", []any{out, 1, uint32(2)}},
		"uintptr":   {0, false, "uintptr is no argument", []any{uintptr(0), uint32(1), uint32(2)}},
		"bool":      {2, false, "bool is no argument", []any{out, uint32(1), true}},
		"complex":   {0, false, "complex64 is no argument", []any{complex64(0), uint32(1), uint32(2)}},
		"pointer":   {0, false, "*uint32 is no argument", []any{new(uint32), uint32(1), uint32(2)}},
		"slice":     {0, false, "[]uint32 is no argument", []any{[]uint32{1}, uint32(1), uint32(2)}},
		"string":    {0, false, "string is no argument", []any{"", uint32(1), uint32(2)}},
		"nil":       {0, false, "DevicePtr(0)", []any{nil, uint32(1), uint32(2)}},
		"struct":    {0, false, "is no argument", []any{struct{ N int }{}, uint32(1), uint32(2)}},
		"array":     {0, false, "is no argument", []any{[2]bool{}, uint32(1), uint32(2)}},
		"empty":     {0, false, "is no argument", []any{struct{}{}, uint32(1), uint32(2)}},
		"no memory": {0, false, "a nil *cu.Memory", []any{(*cu.Memory)(nil), uint32(1), uint32(2)}},
		"closed":    {0, false, "a closed *cu.Memory", []any{closed, uint32(1), uint32(2)}},
	} {
		if c.counted && !counts {
			continue
		}
		err := f.Launch(ctx.NullStream(), one, c.args...)
		var wrong *cu.ArgumentError
		require.ErrorAs(t, err, &wrong, name)
		require.Equal(t, c.index, wrong.Index, name)
		require.Equal(t, "shared", wrong.Function)
		require.ErrorContains(t, err, c.says, name)
	}
	require.ErrorIs(t, f.Launch(ctx.NullStream(), one, closed, uint32(1), uint32(2)), cu.ErrClosed)
	require.ErrorIs(t, f.Launch(ctx.NullStream(), one, out, uint32(1), uint32(2)), cu.ErrInvalidValue, "now the driver saw them")
}

func TestPreparedLaunch(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	s := ok(ctx.NewStream())(t)
	const n = 100
	out := zeroed(t, ctx, 4*n)
	cfg := one
	cfg.Shared = 64
	f := function(t, ctx, "shared")
	l, err := f.Prepare(cfg, out, uint32(0), uint32(0))
	require.NoError(t, err)
	require.Equal(t, f, l.Function())
	require.NoError(t, ctx.Synchronize(soon(t)))
	for i := range uint32(n) { // none of them waits: each has its own arguments
		require.NoError(t, l.Set(0, out.Ptr().Add(uint64(4*i))))
		require.NoError(t, l.Set(2, i*i))
		require.NoError(t, l.Run(s))
	}
	require.NoError(t, s.Synchronize(soon(t)))
	for i, v := range words(t, ctx, out.Ptr(), n) {
		require.EqualValues(t, i*i, v)
	}

	var wrong *cu.ArgumentError
	for _, err := range []error{l.Set(-1, uint32(1)), l.Set(3, uint32(1)), l.Set(1, uint64(1)), l.Set(1, 1), l.Set(1, nil), l.Set(0, out)} {
		require.ErrorAs(t, err, &wrong)
	}
	require.ErrorIs(t, (*cu.Launch)(nil).Run(s), cu.ErrClosed)
	require.ErrorIs(t, (*cu.Launch)(nil).Set(0, uint32(1)), cu.ErrClosed)
	require.NoError(t, s.Close())
	require.ErrorIs(t, l.Run(s), cu.ErrClosed)
}

// A prepared launch refuses to run with memory closed since, until another address takes its
// place.
func TestPreparedLaunchOfClosedMemory(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	cfg := one
	cfg.Shared = 64
	mem, other := zeroed(t, ctx, 4), zeroed(t, ctx, 4)
	m := load(t, ctx, various(t))
	l := ok(ok(m.Function("shared"))(t).Prepare(cfg, mem, uint32(0), uint32(5)))(t)
	require.NoError(t, l.Run(ctx.NullStream()))
	require.NoError(t, mem.Close())
	err := l.Run(ctx.NullStream())
	var wrong *cu.ArgumentError
	require.ErrorAs(t, err, &wrong)
	require.ErrorIs(t, err, cu.ErrClosed)
	require.ErrorContains(t, err, "kernel shared: args[0]: a closed *cu.Memory")
	require.NoError(t, l.Set(0, other.Ptr()))
	require.NoError(t, l.Run(ctx.NullStream()))
	require.NoError(t, ctx.Synchronize(soon(t)))
	require.Equal(t, []uint32{5}, words(t, ctx, other.Ptr(), 1))
	require.NoError(t, m.Close())
	require.ErrorIs(t, l.Run(ctx.NullStream()), cu.ErrClosed)
}

// Invariant 1.
func TestPreparedLaunchFromManyGoroutines(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	m := load(t, ctx, various(t))
	f := ok(m.Function("count"))(t)
	l := ok(f.Prepare(one, alloc(t, ctx, 4)))(t)
	var wg sync.WaitGroup
	errs := make(chan error, 8)
	for range cap(errs) {
		wg.Go(func() {
			s, err := ctx.NewStream()
			for range 25 {
				if err == nil {
					err = l.Run(s)
				}
			}
			errs <- errors.Join(err, s.Close())
		})
	}
	wg.Wait()
	for range cap(errs) {
		require.NoError(t, <-errs)
	}
	require.NoError(t, ctx.Synchronize(soon(t)))
	require.Equal(t, []uint32{7 + 8*25}, counted(t, m))
}

func TestLaunchIsRefusedAtOnce(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	f := function(t, ctx, "nothing")
	require.NoError(t, f.Launch(ctx.NullStream(), cu.LaunchConfig{Grid: cu.Dim3{X: 2, Y: 2, Z: 2}, Block: cu.Dim3{X: 8, Y: 8, Z: 16}}))
	other := untilEnd(t, ok(ctx.Device().NewContext(cu.SchedAuto))(t))
	require.ErrorIs(t, f.Launch(ok(other.NewStream())(t), one), cu.ErrInvalidHandle)
	require.ErrorIs(t, (*cu.Function)(nil).Launch(ctx.NullStream(), one), cu.ErrClosed)
}

func TestCooperativeLaunch(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	m := load(t, ctx, various(t))
	f := ok(m.Function("count"))(t)
	out := alloc(t, ctx, 4)
	threads, blocks, err := f.SuggestedBlock(0, 0)
	require.NoError(t, err)
	cfg := cu.LaunchConfig{Grid: cu.Dim3{X: uint32(blocks)}, Block: cu.Dim3{X: uint32(threads)}, Cooperative: true}
	cfg.Grid.X++
	err = f.Launch(ctx.NullStream(), cfg, out)
	require.ErrorIs(t, err, cu.ErrCooperativeLaunchTooLarge)
	require.ErrorContains(t, err, "cuLaunchCooperativeKernel")
	cfg.Priority = -1
	err = f.Launch(ctx.NullStream(), cfg, out)
	if !lacks(t, ctx.Device().Driver(), "cuLaunchKernelEx", err) {
		require.ErrorIs(t, err, cu.ErrCooperativeLaunchTooLarge)
	}
	cfg.Priority = 0
	cfg.Grid.X, cfg.Block.X = 2, 32
	require.NoError(t, f.Launch(ctx.NullStream(), cfg, out))
	require.NoError(t, ctx.Synchronize(soon(t)))
	require.Equal(t, []uint32{7 + 64}, counted(t, m))
}

func TestLaunchAttributes(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	m := load(t, ctx, various(t))
	f := ok(m.Function("count"))(t)
	out := alloc(t, ctx, 4)
	cfg := one
	cfg.Priority = -1
	if orTooOld(t, ctx.Device().Driver(), "cuLaunchKernelEx", f.Launch(ctx.NullStream(), cfg, out)) {
		return
	}
	cfg.Cooperative = true
	require.NoError(t, f.Launch(ctx.NullStream(), cfg, out))
	want := uint32(7 + 2)
	clusters := ok(ctx.Device().Attribute(cu.AttributeClusterLaunch))(t)
	cfg = cu.LaunchConfig{Grid: cu.Dim3{X: 4}, Block: cu.Dim3{X: 1}, Cluster: cu.Dim3{X: 2}}
	if err := f.Launch(ctx.NullStream(), cfg, out); clusters != 0 {
		require.NoError(t, err)
		want += 4
		cfg.Cluster.X = 3 // which do not make 4 blocks
		require.ErrorIs(t, f.Launch(ctx.NullStream(), cfg, out), cu.ErrInvalidClusterSize)
	} else {
		require.Error(t, err)
	}
	require.NoError(t, ctx.Synchronize(soon(t)))
	require.Equal(t, []uint32{want}, counted(t, m))
}

// A graph has a copy of the arguments.
func TestCapturedLaunch(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	s := newStream(t, ctx)
	out := zeroed(t, ctx, 8)
	cfg := one
	cfg.Shared = 64
	l := ok(function(t, ctx, "shared").Prepare(cfg, out, uint32(0), uint32(11)))(t)
	require.NoError(t, ctx.Synchronize(soon(t)))
	g := ok(s.Capture(func() error { return l.Run(s) }))(t)
	require.Equal(t, 1, ok(g.NodeCount())(t))
	require.Equal(t, cu.NodeKernel, ok(ok(g.Nodes())(t)[0].Type())(t))
	require.NoError(t, l.Set(0, out.Ptr().Add(4)))
	require.NoError(t, l.Set(2, uint32(12)))
	exec := executable(t, g)
	require.NoError(t, exec.Launch(s))
	require.NoError(t, l.Run(s))
	require.NoError(t, s.Synchronize(soon(t)))
	require.Equal(t, []uint32{11, 12}, words(t, ctx, out.Ptr(), 2))
	require.NoError(t, g.Close())
}
