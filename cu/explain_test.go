package cu_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// detail is what an error of that result says was wrong.
func detail(t testing.TB, err error, want cu.Result) string {
	t.Helper()
	var e *cu.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, want, e.Result)
	require.Contains(t, err.Error(), e.Detail)
	return e.Detail
}

// kernelsNamed is PTX with kernels of these names, which do nothing.
func kernelsNamed(names ...string) []byte {
	text := ".version 7.4\n.target sm_75\n.address_size 64\n"
	for _, name := range names {
		text += ".visible .entry " + name + "() .maxntid 64 { ret; }\n"
	}
	return []byte(text)
}

// A kernel that is not there is named, and so are those that there are: of many
// the first few, those that are most like it before the others.
func TestMissingKernelNamesTheOthers(t *testing.T) {
	drv, _, ctx := driverContext(t)
	many := make([]string, 30)
	for i := range many {
		many[i] = fmt.Sprintf("kern%d", i)
	}
	long := strings.Repeat("l", 200)
	for _, c := range []struct {
		text         []byte
		ask, answers string
	}{
		{various(t), "counter", "count, nothing, shared, store"},
		{kernelsNamed(), "any", "none"},
		{kernelsNamed(many...), "Kern2", "kern2, kern20, kern21, kern22, kern23, kern24, kern25, kern26, kern27, kern28 and 20 more"},
		{kernelsNamed("zz_half", "a", long), "half", "zz_half, a, " + long[:100] + "…"},
	} {
		_, err := load(t, ctx, c.text).Function(c.ask)
		said := detail(t, err, cu.ErrNotFound)
		if drv.Caller().Library().Has("cuModuleEnumerateFunctions") {
			require.Equal(t, fmt.Sprintf("there is no kernel %q; the module has %s", c.ask, c.answers), said)
		} else {
			require.Equal(t, fmt.Sprintf("there is no kernel %q", c.ask), said)
		}
		if c.answers == "none" {
			continue
		}
		lib, err := drv.LoadLibrary(c.text)
		if lacks(t, drv, "cuLibraryLoadData", err) {
			continue
		}
		require.NoError(t, err)
		_, err = lib.Kernel(c.ask)
		require.Equal(t, strings.Replace(said, "module", "library", 1), detail(t, err, cu.ErrNotFound))
		_, _, err = lib.Global(ctx, "none")
		require.Equal(t, `there is no variable "none"`, detail(t, err, cu.ErrNotFound))
		require.NoError(t, lib.Close())
	}
	_, _, err := load(t, ctx, various(t)).Global("none")
	require.Equal(t, `there is no variable "none"`, detail(t, err, cu.ErrNotFound))
}

// Drivers before CUDA 12.4 cannot list kernels.
func TestMissingKernelOfAnOldDriver(t *testing.T) {
	_, _, ctx := driverContext(t, without(t, "cuModuleGetFunctionCount"))
	_, err := load(t, ctx, various(t)).Function("no")
	require.Equal(t, `there is no kernel "no"`, detail(t, err, cu.ErrNotFound))
}

// attribute is a number of the device's.
func attribute(t testing.TB, dev *cu.Device, a cu.Attribute) uint32 {
	t.Helper()
	n := ok(dev.Attribute(a))(t)
	return uint32(n)
}

// The error of a launch names the size that is too large, and the limit that it exceeds.
func TestLaunchNamesTheLimit(t *testing.T) {
	s, _, dev, ctx := spiedContext(t)
	f := ok(load(t, ctx, kernelsNamed("small")).Function("small"))(t)
	nothing := function(t, ctx, "nothing")
	a := ok(nothing.Attributes())(t)
	most := func(a cu.Attribute) uint32 { return attribute(t, dev, a) }
	threads, x := most(cu.AttributeMaxThreadsPerBlock), most(cu.AttributeMaxBlockDimX)
	shared := uint32(a.MaxDynamicShared)
	for _, c := range []struct {
		f    *cu.Function
		cfg  cu.LaunchConfig
		want string
	}{
		{nothing, cu.LaunchConfig{Block: cu.Dim3{X: 1}}, "the grid has 0 blocks in X; the device takes 1 to "},
		{nothing, cu.LaunchConfig{Grid: cu.Dim3{X: 1 << 31}, Block: cu.Dim3{X: 1}}, fmt.Sprintf("the grid has %d blocks in X; the device takes 1 to %d", uint32(1<<31), most(cu.AttributeMaxGridDimX))},
		{nothing, cu.LaunchConfig{Grid: cu.Dim3{X: 1, Y: 1 << 20}, Block: cu.Dim3{X: 1}}, fmt.Sprintf("the grid has %d blocks in Y; the device takes 1 to %d", 1<<20, most(cu.AttributeMaxGridDimY))},
		{nothing, cu.LaunchConfig{Grid: cu.Dim3{X: 1, Z: 1 << 20}, Block: cu.Dim3{X: 1}}, fmt.Sprintf("the grid has %d blocks in Z; the device takes 1 to %d", 1<<20, most(cu.AttributeMaxGridDimZ))},
		{nothing, cu.LaunchConfig{Grid: cu.Dim3{X: 1}}, fmt.Sprintf("a block has 0 threads in X; the device takes 1 to %d", x)},
		{nothing, cu.LaunchConfig{Grid: cu.Dim3{X: 1}, Block: cu.Dim3{X: 4096}}, fmt.Sprintf("a block has 4096 threads in X; the device takes 1 to %d", x)},
		{nothing, cu.LaunchConfig{Grid: cu.Dim3{X: 1}, Block: cu.Dim3{X: 1, Y: 4097}}, fmt.Sprintf("a block has 4097 threads in Y; the device takes 1 to %d", most(cu.AttributeMaxBlockDimY))},
		{nothing, cu.LaunchConfig{Grid: cu.Dim3{X: 1}, Block: cu.Dim3{X: 1, Z: 4098}}, fmt.Sprintf("a block has 4098 threads in Z; the device takes 1 to %d", most(cu.AttributeMaxBlockDimZ))},
		{nothing, cu.LaunchConfig{Grid: cu.Dim3{X: 1}, Block: cu.Dim3{X: x, Y: 4}}, fmt.Sprintf("a block has %d × 4 × 1 = %d threads; the device takes at most %d", x, 4*x, threads)},
		{f, cu.LaunchConfig{Grid: cu.Dim3{X: 1}, Block: cu.Dim3{X: 65}}, "a block has 65 threads; kernel small takes at most 64, "},
		{nothing, cu.LaunchConfig{Grid: cu.Dim3{X: 1}, Block: cu.Dim3{X: 1}, Shared: shared + 1}, fmt.Sprintf("a block adds %d bytes of shared memory to kernel nothing; the limit is %d", shared+1, shared)},
	} {
		require.Contains(t, detail(t, c.f.Launch(ctx.NullStream(), c.cfg), cu.ErrInvalidValue), c.want)
	}
	optIn := most(cu.AttributeMaxSharedMemoryPerBlockOptin)
	cfg := cu.LaunchConfig{Grid: cu.Dim3{X: 1}, Block: cu.Dim3{X: 1}, Shared: optIn}
	if optIn > shared {
		require.NoError(t, nothing.SetMaxDynamicShared(shared-1))
		require.Contains(t, detail(t, nothing.Launch(ctx.NullStream(), cfg), cu.ErrInvalidValue), fmt.Sprintf("; the limit is %d; SetMaxDynamicShared can raise it to %d", shared-1, optIn))
		require.NoError(t, nothing.SetMaxDynamicShared(optIn))
		require.NoError(t, nothing.Launch(ctx.NullStream(), cfg))
	}
	s.Fail("cuLaunchKernel", cu.ErrLaunchOutOfResources)
	cfg = cu.LaunchConfig{Grid: cu.Dim3{X: 1}, Block: cu.Dim3{X: 128}}
	require.Contains(t, detail(t, f.Launch(ctx.NullStream(), cfg), cu.ErrLaunchOutOfResources), "a block has 128 threads; kernel small takes at most 64")
	require.Empty(t, detail(t, f.Launch(ctx.NullStream(), one), cu.ErrLaunchOutOfResources), "nothing is known")
}

// A copy or fill that leaves its memory says which side it is, and where both end.
func TestCopyNamesBothEnds(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	m, good := alloc(t, ctx, 3000), alloc(t, ctx, 1<<20)
	at, end := m.Ptr()+1000, m.Ptr()+3000
	host := make([]byte, 1<<20)
	side, whole := cu.DeviceSide(m.Ptr(), 100), cu.DeviceSide(good.Ptr(), 100)
	side.X, side.Y = 10, 20 // at byte 2010
	peer := side
	peer.Context = ctx
	past := func(which string, from cu.DevicePtr, size, more uint64) string {
		return fmt.Sprintf("the %s %s+%d ends %d bytes past its allocation, which ends at %s", which, from, size, more, end)
	}
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"to the device":   {cu.CopyToDevice(ctx, at, host[:2001]), past("destination", at, 2001, 1)},
		"to the host":     {cu.CopyToHost(ctx, host[:3000], at), past("source", at, 3000, 1000)},
		"into":            {cu.Copy(ctx, at, good.Ptr(), 3000), past("destination", at, 3000, 1000)},
		"out of":          {cu.Copy(ctx, good.Ptr(), at, 3000), past("source", at, 3000, 1000)},
		"both":            {cu.Copy(ctx, at, m.Ptr(), 3001), past("destination", at, 3001, 1001) + "; " + past("source", m.Ptr(), 3001, 1)},
		"peer, into":      {cu.CopyPeer(ctx, at, ctx, good.Ptr(), ctx, 3000), past("destination", at, 3000, 1000)},
		"peer, out of":    {cu.CopyPeer(ctx, good.Ptr(), ctx, at, ctx, 3000), past("source", at, 3000, 1000)},
		"fill 8":          {cu.Fill(ctx, at, uint8(1), 2001), past("destination", at, 2001, 1)},
		"fill 16":         {cu.Fill(ctx, at, uint16(1), 2000), past("destination", at, 4000, 2000)},
		"fill 32":         {cu.Fill(ctx, at, uint32(1), 501), past("destination", at, 2004, 4)},
		"fill of rows":    {cu.Fill2D(ctx, at, 1000, uint32(1), 20, 3), past("destination", at, 2080, 80)},
		"rows, into":      {cu.Copy2D(ctx, side, cu.HostSide(host, 0), 50, 11), past("destination", m.Ptr()+2010, 1050, 60)},
		"rows, out of":    {cu.Copy2D(ctx, cu.HostSide(host, 0), side, 50, 11), past("source", m.Ptr()+2010, 1050, 60)},
		"layers, into":    {cu.Copy3D(ctx, side, whole, 50, 5, 3), past("destination", m.Ptr()+2010, 5450, 4460)},
		"layers, of peer": {cu.Copy3D(ctx, whole, peer, 50, 5, 3), past("source", m.Ptr()+2010, 5450, 4460)},
		"all addresses":   {cu.Copy(ctx, good.Ptr(), at, math.MaxUint64), past("source", at, math.MaxUint64, math.MaxUint64-2000)},
	} {
		require.Contains(t, detail(t, c.err, cu.ErrInvalidValue), c.want, name)
	}
}

// So it does in reserved address space, where one mapping may follow another.
func TestCopyNamesTheEndOfMappings(t *testing.T) {
	drv := cutest.Driver(t)
	if drv.Version() < 11070 {
		t.Skip("CU_POINTER_ATTRIBUTE_MAPPING_SIZE came with CUDA 11.7")
	}
	dev := firstDevice(t, drv)
	ctx, g := cutest.Context(t, dev), granularity(t, dev)
	two, hole := twoMappings(t, dev), holed(t, dev)
	host := make([]byte, 3*g)
	for from, end := range map[cu.DevicePtr]cu.DevicePtr{two + 1: two.Add(2 * g), hole + 1: hole.Add(g), hole.Add(2*g + 1): hole.Add(3 * g)} {
		require.NoError(t, cu.CopyToDevice(ctx, from, host[:end-from]))
		said := detail(t, cu.CopyToDevice(ctx, from, host[:end-from+5]), cu.ErrInvalidValue)
		require.Equal(t, fmt.Sprintf("the destination %s+%d ends 5 bytes past its allocation, which ends at %s", from, end-from+5, end), said)
	}
}

// The error says that there is no memory at the address, or none that may be used so.
func TestCopySaysThatThereIsNoMemory(t *testing.T) {
	drv := cutest.Driver(t)
	dev := firstDevice(t, drv)
	ctx, g := cutest.Context(t, dev), granularity(t, dev)
	good, hole := alloc(t, ctx, 8), holed(t, dev)
	unset, _ := mappedMemory(t, dev, g)
	readable, _ := mappedMemory(t, dev, g)
	require.NoError(t, drv.SetAccess(readable, g, cu.ReadOnly, dev))
	closed, err := ctx.Alloc(8)
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	host := make([]byte, 8)
	require.NoError(t, cu.Copy(ctx, good.Ptr(), readable, 8))
	for want, err := range map[string]error{
		"the destination is 0x0, the address of closed memory":                                         cu.CopyToDevice(ctx, closed.Ptr(), host),
		fmt.Sprintf("the source %s is not in memory that the driver knows", hole.Add(g)):               cu.CopyToHost(ctx, host, hole.Add(g)),
		fmt.Sprintf("access to the source %s is none; read-only is needed", unset):                     cu.Copy(ctx, good.Ptr(), unset, 8),
		fmt.Sprintf("access to the destination %s is read-only; read-write is needed", readable):       cu.Copy(ctx, readable, good.Ptr(), 8),
		fmt.Sprintf("the destination %s is not a multiple of 4, the size of an element", good.Ptr()+1): cu.Fill(ctx, good.Ptr()+1, uint32(1), 1),
		"the pitch 6 is not a multiple of 4, the size of an element":                                   cu.Fill2D(ctx, good.Ptr(), 6, uint32(1), 1, 2),
		"rows of 8 bytes overlap: their pitch is 4":                                                    cu.Fill2D(ctx, good.Ptr(), 4, uint32(1), 2, 2),
	} {
		require.Equal(t, want, detail(t, err, cu.ErrInvalidValue))
	}
}

// The nodes of a graph name the memory that they cannot have, too.
func TestNodeSaysWhatIsWrong(t *testing.T) {
	_, _, ctx := driverContext(t)
	m := alloc(t, ctx, 1<<20)
	g := ok(ctx.NewGraph())(t)
	defer g.Close()
	_, err := g.AddCopy(m.Ptr().Add(8), m.Ptr(), 1<<20)
	require.Contains(t, detail(t, err, cu.ErrInvalidValue), "the destination "+m.Ptr().Add(8).String()+"+1048576 ends 8 bytes past its allocation")
	_, err = cu.AddFill(g, m.Ptr()+1, uint16(1), 1)
	require.Equal(t, fmt.Sprintf("the destination %s is not a multiple of 2, the size of an element", m.Ptr()+1), detail(t, err, cu.ErrInvalidValue))
	require.ErrorIs(t, errOf((*cu.Graph)(nil).AddCopy(m.Ptr(), m.Ptr(), 1)), cu.ErrClosed)

	other := ok(ctx.NewGraph())(t)
	defer other.Close()
	stranger := ok(cu.AddFill(other, m.Ptr(), uint8(1), 1))(t)
	_, err = g.AddCopy(m.Ptr(), m.Ptr().Add(8), 8, stranger)
	require.Equal(t, "a node in after belongs to another graph", detail(t, err, cu.ErrInvalidValue))
}

// The driver is asked for reasons when it has refused something, and only then.
func TestSuccessAsksForNoReasons(t *testing.T) {
	s, _, _, ctx := spiedContext(t)
	m, f := alloc(t, ctx, 64), function(t, ctx, "nothing")
	l, err := f.Prepare(one)
	require.NoError(t, err)
	side := cu.DeviceSide(m.Ptr(), 8)
	before := s.calls()
	for name, err := range map[string]error{
		"launch": l.Run(ctx.NullStream()), "copy": cu.CopyAsync(ctx.NullStream(), m.Ptr(), m.Ptr()+32, 32), "fill": cu.FillAsync(ctx.NullStream(), m.Ptr(), uint8(1), 64),
		"rows": cu.Copy2DAsync(ctx.NullStream(), side, side, 4, 4),
	} {
		require.NoError(t, err, name)
	}
	require.Equal(t, before+4, s.calls())
	require.Error(t, cu.Copy(ctx, m.Ptr(), m.Ptr(), 65))
	require.Greater(t, s.calls(), before+4)
}

// Access is checked in the peer's context for the peer's end of a copy.
func TestPeerCopyNamesTheEnd(t *testing.T) {
	a, b := cutest.TwoDevices(t, cutest.Driver(t))
	here, there, g := cutest.Context(t, a), cutest.Context(t, b), granularity(t, b)
	near := alloc(t, here, 100)
	far, _ := mappedMemory(t, b, g)
	require.NoError(t, b.Driver().SetAccess(far, g, cu.ReadWrite, b))
	end := far.Add(g)
	want := fmt.Sprintf("%s+100 ends 1 bytes past its allocation, which ends at %s", end-99, end)
	require.Equal(t, "the destination "+want, detail(t, cu.CopyPeer(here, end-99, there, near.Ptr(), here, 100), cu.ErrInvalidValue))
	require.Equal(t, "the source "+want, detail(t, cu.CopyPeer(here, near.Ptr(), here, end-99, there, 100), cu.ErrInvalidValue))
	side := cu.DeviceSide(end-99, 0)
	side.Context = there
	require.Equal(t, "the source "+want, detail(t, cu.Copy3D(here, cu.DeviceSide(near.Ptr(), 0), side, 100, 1, 1), cu.ErrInvalidValue))
}
