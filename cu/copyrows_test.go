package cu_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
)

// An area is memory of some kind that tests copy rows from and to.
type area struct {
	side  func(pitch uint64) cu.Side
	read  func() []byte
	write func([]byte)
}

// areaSize is the size of every area, which is no multiple of anything.
const areaSize = 60_001

// areas makes one of each kind. They end with the test.
func areas(t testing.TB, ctx *cu.Context) map[string]area {
	t.Helper()
	all := map[string]area{}
	host := func(name string, b []byte) {
		all[name] = area{
			func(pitch uint64) cu.Side { return cu.HostSide(b, pitch) },
			func() []byte { return append([]byte(nil), b...) },
			func(want []byte) { copy(b, want) },
		}
	}
	device := func(name string, p cu.DevicePtr, side func(cu.DevicePtr, uint64) cu.Side) {
		all[name] = area{
			func(pitch uint64) cu.Side { return side(p, pitch) },
			func() []byte {
				b := make([]byte, areaSize)
				require.NoError(t, cu.CopyToHost(ctx, b, p))
				return b
			},
			func(b []byte) { require.NoError(t, cu.CopyToDevice(ctx, p, b)) },
		}
	}
	host("slice", make([]byte, areaSize))
	pinned := hostMemory(t, ctx, areaSize)
	host("pinned", pinned.Bytes())
	host("registered", registered(t, ctx, make([]byte, areaSize)).Bytes())
	device("device", alloc(t, ctx, areaSize).Ptr(), cu.DeviceSide)
	device("unified", alloc(t, ctx, areaSize).Ptr(), cu.UnifiedSide)
	p := hostMemory(t, ctx, areaSize).Ptr()
	device("pinned, unified", p, cu.UnifiedSide)
	p = hostMemory(t, ctx, areaSize).Ptr()
	device("pinned, by its device address", p, cu.DeviceSide)
	g := granularity(t, ctx.Device())
	two := twoMappings(t, ctx.Device())
	device("two mappings", two.Add(g-areaSize/2), cu.DeviceSide)
	return all
}

// alloc is device memory until the test ends.
func alloc(t testing.TB, ctx *cu.Context, size uint64) *cu.Memory {
	t.Helper()
	return untilEnd(t, ok(ctx.Alloc(size))(t))
}

// twoMappings is two pieces of physical memory side by side until the test
// ends.
func twoMappings(t testing.TB, dev *cu.Device) cu.DevicePtr {
	t.Helper()
	drv, g := dev.Driver(), granularity(t, dev)
	p := ok(drv.ReserveAddress(3*g, 0, 0))(t) // nothing is ever mapped behind them
	for at := range uint64(2) {
		m := ok(dev.CreateMemory(g, cu.HandleFD))(t)
		require.NoError(t, drv.Map(p.Add(at*g), g, 0, m))
		require.NoError(t, m.Close())
	}
	require.NoError(t, drv.SetAccess(p, 2*g, cu.ReadWrite, dev))
	t.Cleanup(func() {
		require.NoError(t, drv.Unmap(p, 2*g))
		require.NoError(t, drv.FreeAddress(p, 3*g))
	})
	return p
}

// holed is a reservation of three pieces of which the middle one is missing,
// until the test ends.
func holed(t testing.TB, dev *cu.Device) cu.DevicePtr {
	t.Helper()
	drv, g := dev.Driver(), granularity(t, dev)
	p := ok(drv.ReserveAddress(3*g, 0, 0))(t)
	t.Cleanup(func() { require.NoError(t, drv.FreeAddress(p, 3*g)) })
	for _, at := range []uint64{0, 2 * g} {
		m := ok(dev.CreateMemory(g, cu.HandleFD))(t)
		require.NoError(t, drv.Map(p.Add(at), g, 0, m))
		require.NoError(t, m.Close())
		require.NoError(t, drv.SetAccess(p.Add(at), g, cu.ReadWrite, dev))
		t.Cleanup(func() { require.NoError(t, drv.Unmap(p.Add(at), g)) })
	}
	return p
}

// A shape is a copy of rows, at random.
type shape struct{ width, height, depth uint64 }

func randomShape(r *rand.Rand, layers uint64) shape {
	return shape{1 + r.Uint64N(90), 1 + r.Uint64N(12), 1 + r.Uint64N(layers)}
}

// place sets where a copy of the shape lies in an area, at random.
func (s shape) place(r *rand.Rand, side *cu.Side, layers uint64) {
	side.X, side.Y = r.Uint64N(20), r.Uint64N(5)
	if layers > 1 {
		side.Z = r.Uint64N(4)
	}
	side.Pitch = side.X + s.width + r.Uint64N(3)*r.Uint64N(40)
	side.Rows = side.Y + s.height + r.Uint64N(2)*r.Uint64N(5)
}

// model does in Go what the driver is to do.
func (s shape) model(dst, src []byte, to, from cu.Side) {
	at := func(side cu.Side, y, z uint64) uint64 {
		return ((side.Z+z)*side.Rows+side.Y+y)*side.Pitch + side.X
	}
	for z := range s.depth {
		for y := range s.height {
			copy(dst[at(to, y, z):][:s.width], src[at(from, y, z):])
		}
	}
}

// eachPair calls f for each pair of kinds of memory.
func eachPair(t *testing.T, ctx *cu.Context, f func(t *testing.T, r *rand.Rand, to, from area)) {
	sources, targets := areas(t, ctx), areas(t, ctx)
	for from := range sources {
		for to := range targets {
			t.Run(from+" to "+to, func(t *testing.T) {
				seed := rand.Uint64()
				t.Log("seed", seed)
				f(t, rand.New(rand.NewPCG(seed, 0)), targets[to], sources[from])
			})
		}
	}
}

func randomBytes(r *rand.Rand) []byte {
	b := make([]byte, areaSize)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// Rows land where a plain program would put them and nothing else changes,
// whatever the shape, the pitch and the memory.
func TestCopiesOfRowsAreAsTheModelSays(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	stream := newStream(t, ctx)
	for name, layers := range map[string]uint64{"2D": 1, "3D": 6, "3D between contexts": 5} {
		t.Run(name, func(t *testing.T) {
			eachPair(t, ctx, func(t *testing.T, r *rand.Rand, to, from area) {
				src, want := randomBytes(r), randomBytes(r)
				from.write(src)
				to.write(want)
				for range 8 {
					s := randomShape(r, layers)
					dst, src2 := to.side(0), from.side(0)
					s.place(r, &dst, layers)
					s.place(r, &src2, layers)
					if layers == 1 {
						require.NoError(t, errors.Join(cu.Copy2DAsync(stream, dst, src2, s.width, s.height), stream.Synchronize(t.Context())), "%+v", s)
					} else {
						if layers == 5 {
							dst.Context = ctx
						}
						require.NoError(t, errors.Join(cu.Copy3DAsync(stream, dst, src2, s.width, s.height, s.depth), stream.Synchronize(t.Context())), "%+v", s)
					}
					s.model(want, src, dst, src2)
				}
				require.Equal(t, want, to.read())
			})
		})
	}
}

// A copy of rows takes every byte of the memory, to the last.
func TestCopiesOfRowsReachTheEnd(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	eachPair(t, ctx, func(t *testing.T, r *rand.Rand, to, from area) {
		src, want := randomBytes(r), randomBytes(r)
		from.write(src)
		to.write(want)
		const pitch, width = 1000, 1
		dst, src2 := to.side(pitch), from.side(pitch)
		require.NoError(t, cu.Copy2D(ctx, dst, src2, width, areaSize/pitch+1))
		shape{width, areaSize/pitch + 1, 1}.model(want, src, dst, src2)
		require.Equal(t, want, to.read())
	})
}

// A copy that would leave its slice never reaches the driver.
func TestCopyThatLeavesASliceIsRefused(t *testing.T) {
	s, _, _, ctx := spiedContext(t)
	p := alloc(t, ctx, 4096).Ptr()
	before := s.calls()
	for _, x := range []struct{ size, x, y, z, pitch, rows, width, height, depth uint64 }{
		{100, 0, 0, 0, 10, 0, 10, 11, 1},
		{100, 0, 0, 0, 11, 0, 10, 10, 1}, // one byte
		{100, 1, 9, 0, 10, 0, 9, 2, 1},
		{100, 0, 0, 1, 10, 5, 10, 5, 2},
		{100, 0, 0, 0, 10, 6, 10, 5, 2},
		{0, 0, 0, 0, 1, 0, 1, 1, 1},
		{100, 0, 0, 0, 1 << 63, 0, 10, 3, 1},
		{100, 0, 0, 0, 1 << 32, 1 << 32, 10, 10, 2},
		{100, 0, 0, math.MaxUint64, 10, 2, 10, 2, 2},
		{100, 0, 0, 1 << 32, 10, 1 << 32, 10, 10, 1},
		{100, 0, 0, 0, math.MaxUint64 - 7, 0, 10, 2, 1},
		{100, 0, 0, 768614336404564650, 1, 24, 1, 20, 1},
		{100, 0, 0, math.MaxUint64, 10, 2, 10, 2, 1},
		{100, 0, 0, 0, math.MaxUint64, 0, math.MaxUint64, 1, 1},
	} {
		side := cu.HostSide(make([]byte, x.size), x.pitch)
		side.X, side.Y, side.Z, side.Rows = x.x, x.y, x.z, x.rows
		far := cu.DeviceSide(p, 64)
		for _, err := range []error{
			cu.Copy3D(ctx, far, side, x.width, x.height, x.depth),
			cu.Copy3D(ctx, side, far, x.width, x.height, x.depth),
		} {
			require.ErrorIs(t, err, cu.ErrTooShort, "%+v", x)
		}
		require.ErrorIs(t, cu.Copy3D(ctx, cu.Side{Context: ctx}, side, x.width, x.height, x.depth), cu.ErrClosed)
		if x.depth == 1 && x.z == 0 {
			require.ErrorIs(t, cu.Copy2D(ctx, far, side, x.width, x.height), cu.ErrTooShort, "%+v", x)
		}
	}
	for _, x := range []struct{ x, y, pitch, rows, width, height uint64 }{
		{0, 0, 9, 0, 10, 2},
		{1, 0, 10, 0, 10, 2},
		{0, 1, 10, 2, 1, 2},
		{math.MaxUint64, 0, 10, 0, 2, 1},
		{0, math.MaxUint64, 10, 0, 2, 2},
		{0, math.MaxUint64, 10, 10, 2, 2},
	} {
		side := cu.HostSide(make([]byte, 100), x.pitch)
		side.X, side.Y, side.Rows = x.x, x.y, x.rows
		err := cu.Copy3D(ctx, cu.DeviceSide(p, 64), side, x.width, x.height, 1)
		require.ErrorIs(t, err, cu.ErrInvalidValue, "%+v", x)
		require.ErrorContains(t, err, "overlap", "%+v", x)
	}
	require.ErrorIs(t, cu.Copy2D(ctx, cu.HostSide([]*int{nil}, 8), cu.DeviceSide(p, 8), 8, 1), cu.ErrPointers)
	require.Equal(t, before, s.calls())
}

// Rows lie side by side where nothing else is said.
func TestRowsAreSideBySideByDefault(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	p := alloc(t, ctx, 64).Ptr()
	src, got := []byte("abcdefghijklmnopqrstuvwx"), make([]byte, 24)
	require.NoError(t, cu.Copy3D(ctx, cu.DeviceSide(p, 0), cu.HostSide(src, 0), 3, 2, 4))
	require.NoError(t, cu.CopyToHost(ctx, got, p))
	require.Equal(t, src, got)
	from := cu.HostSide(src, 0)
	from.X, from.Y = 1, 1
	require.NoError(t, cu.Copy3D(ctx, cu.DeviceSide(p, 0), from, 2, 1, 4))
	require.NoError(t, cu.CopyToHost(ctx, got[:8], p))
	require.Equal(t, "efklqrwx", string(got[:8]))
	require.ErrorIs(t, cu.Copy3D(ctx, cu.DeviceSide(p, 0), from, 2, 1, 5), cu.ErrTooShort)
	from.Z, from.Rows, from.Pitch = 2, 2, 3
	require.NoError(t, cu.Copy2D(ctx, cu.DeviceSide(p, 0), from, 2, 1), "of another layer")
	require.NoError(t, cu.CopyToHost(ctx, got[:2], p))
	require.Equal(t, "qr", string(got[:2]))
}

// Copies between contexts, which may be one and the same or of two devices.
func TestPeerCopies(t *testing.T) {
	drv := cutest.Driver(t)
	devices := drv.Devices()
	near := cutest.Context(t, devices[0])
	far := cutest.Context(t, devices[len(devices)-1])
	a, b := alloc(t, near, 4096).Ptr(), alloc(t, far, 4096).Ptr()
	r := rand.New(rand.NewPCG(1, 2))
	src, got := randomBytes(r)[:4096], make([]byte, 4096)
	for name, c := range map[string]*cu.Context{"near": near, "far": far} {
		t.Run(name, func(t *testing.T) {
			stream := ok(c.NewStream())(t)
			require.NoError(t, cu.CopyToDevice(near, a, src))
			require.NoError(t, cu.CopyPeerAsync(stream, b, far, a, near, 4096))
			require.NoError(t, stream.Synchronize(t.Context()))
			require.NoError(t, cu.CopyToHost(far, got, b))
			require.Equal(t, src, got)

			require.NoError(t, cu.Fill(far, b, uint8(0), 4096))
			require.NoError(t, far.Synchronize(t.Context()))
			to, from := cu.DeviceSide(b, 64), cu.DeviceSide(a, 32)
			to.Context, from.Context, to.X = far, near, 5
			require.NoError(t, errors.Join(cu.Copy2DAsync(stream, to, from, 32, 64), stream.Synchronize(t.Context())))
			require.NoError(t, cu.CopyToHost(far, got, b))
			want := make([]byte, 4096)
			shape{32, 64, 1}.model(want, src, to, from)
			require.Equal(t, want, got)
			require.NoError(t, stream.Close())
		})
	}
	closed := ok(devices[0].PrimaryContext())(t)
	require.NoError(t, closed.Close())
	require.ErrorIs(t, cu.CopyPeer(near, a, closed, b, far, 1), cu.ErrClosed)
	require.ErrorIs(t, cu.CopyPeer(near, a, near, b, closed, 1), cu.ErrClosed)
}

// A copy between two contexts gives the driver both, in the right places.
func TestPeerCopiesNameTheirContexts(t *testing.T) {
	var linear [2]sys.CUcontext
	var box sys.CUDA_MEMCPY3D_PEER
	faults := cutest.NewFaults(t)
	faults.Hook("cuMemcpyPeerAsync", func(call sys.Call, _ func() sys.CUresult) sys.CUresult {
		linear = [2]sys.CUcontext{sys.CUcontext(call.Arg(1)), sys.CUcontext(call.Arg(3))}
		return sys.CUDA_SUCCESS
	})
	faults.Hook("cuMemcpy3DPeerAsync", func(call sys.Call, _ func() sys.CUresult) sys.CUresult {
		box = boxAt(call.Arg(0))
		return sys.CUDA_SUCCESS
	})
	dev := cutest.Device(t, faults.Option())
	near := cutest.Context(t, dev)
	other := ok(dev.NewContext(0))(t)
	require.NoError(t, cu.CopyPeer(near, cu.DevicePtr(4096), other, cu.DevicePtr(8192), near, 1))
	require.Equal(t, [2]sys.CUcontext{other.Handle(), near.Handle()}, linear)
	to := cu.DeviceSide(cu.DevicePtr(4096), 0)
	to.Context = other
	require.NoError(t, cu.Copy2D(near, to, cu.DeviceSide(cu.DevicePtr(8192), 0), 1, 1))
	require.Equal(t, [2]sys.CUcontext{other.Handle(), near.Handle()}, [2]sys.CUcontext{box.DstContext, box.SrcContext})
	require.EqualValues(t, []sys.CUdeviceptr{4096, 8192}, []sys.CUdeviceptr{box.DstDevice, box.SrcDevice})

	foreign := cutest.Context(t, cutest.Device(t))
	err := cu.CopyPeer(near, cu.DevicePtr(4096), foreign, cu.DevicePtr(8192), near, 1)
	require.ErrorIs(t, err, cu.ErrInvalidHandle)
	require.ErrorContains(t, err, "another driver")
	require.ErrorIs(t, cu.CopyPeer(near, cu.DevicePtr(4096), near, cu.DevicePtr(8192), foreign, 1), cu.ErrInvalidHandle)
	require.ErrorIs(t, cu.CopyPeer(near, cu.DevicePtr(4096), nil, cu.DevicePtr(8192), near, 1), cu.ErrClosed)
	require.ErrorIs(t, cu.CopyPeer(near, cu.DevicePtr(4096), near, cu.DevicePtr(8192), nil, 1), cu.ErrClosed)
	require.NoError(t, other.Close())
}

// Sets of rows touch their elements and no others, whatever their width.
func TestFill2D(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	m := alloc(t, ctx, 8192)
	fill2D(t, ctx, m, uint8(0xab))
	fill2D(t, ctx, m, uint16(0xabcd))
	fill2D(t, ctx, m, uint32(0xabcdef01))

	require.ErrorIs(t, cu.Fill2D(ctx, m.Ptr().Add(1), 64, uint16(1), 4, 4), cu.ErrInvalidValue, "address not aligned")
	require.ErrorIs(t, cu.Fill2D(ctx, m.Ptr().Add(2), 64, uint32(1), 4, 4), cu.ErrInvalidValue, "address not aligned")
	require.ErrorIs(t, cu.Fill2D(ctx, m.Ptr(), 63, uint16(1), 4, 4), cu.ErrInvalidValue, "pitch not aligned")
	require.ErrorIs(t, cu.Fill2D(ctx, m.Ptr(), 62, uint32(1), 4, 4), cu.ErrInvalidValue, "pitch not aligned")
	require.ErrorIs(t, cu.Fill2D(ctx, m.Ptr(), 8, uint8(1), 16, 4), cu.ErrInvalidValue, "pitch less than a row")
	require.NoError(t, cu.Fill2D(ctx, m.Ptr(), 0, uint32(1), 4, 1), "a single row needs none")
	require.ErrorIs(t, cu.Fill(ctx, m.Ptr().Add(1), uint16(1), 1), cu.ErrInvalidValue, "address not aligned")
	require.ErrorIs(t, cu.Fill(ctx, m.Ptr(), uint8(1), m.Size()+1), cu.ErrInvalidValue, "off the end")
	require.ErrorIs(t, cu.Fill2D(ctx, holed(t, ctx.Device()), 2*granularity(t, ctx.Device()), uint8(1), 4, 2), cu.ErrInvalidValue, "a hole between the rows")
	require.ErrorIs(t, cu.Fill2D(ctx, cu.DevicePtr(0), 64, uint32(1), 4, 4), cu.ErrInvalidValue, "no memory")
	require.NoError(t, cu.Fill2D(ctx, m.Ptr(), 64, uint32(1), 0, 4))
	require.NoError(t, cu.Fill2D(ctx, m.Ptr(), 64, uint32(1), 4, 0))
	end := twoMappings(t, ctx.Device()).Add(2 * granularity(t, ctx.Device()))
	require.ErrorIs(t, cu.Fill2D(ctx, end-128, 64, uint8(1), 10, 3), cu.ErrInvalidValue, "off the end")
	require.NoError(t, ctx.Synchronize(t.Context()))
}

func fill2D[T uint8 | uint16 | uint32](t *testing.T, ctx *cu.Context, m *cu.Memory, v T) {
	t.Helper()
	t.Run(fmt.Sprintf("%T", v), func(t *testing.T) {
		require.NoError(t, cu.Fill(ctx, m.Ptr(), uint8(0xee), m.Size()))
		words := make([]T, m.Size()/uint64(len(bytesOf(v))))
		require.NoError(t, cu.CopyToHost(ctx, words, m.Ptr()))
		pitch := uint64(32 * len(bytesOf(v)))
		require.NoError(t, cu.Fill2D(ctx, m.Ptr().Add(pitch/32*3), pitch, v, 7, 5))
		for y := range 5 {
			for x := range 7 {
				words[y*32+3+x] = v
			}
		}
		require.Equal(t, words, readBack[T](t, ctx, m.Ptr(), len(words)))
	})
}

// bytesOf is as many bytes as a T has.
func bytesOf[T uint8 | uint16 | uint32](v T) []byte {
	switch any(v).(type) {
	case uint8:
		return make([]byte, 1)
	case uint16:
		return make([]byte, 2)
	}
	return make([]byte, 4)
}

// A side without memory is nil, not too short.
func TestSideOfNothing(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	s := newStream(t, ctx)
	host := cu.HostSide(make([]byte, 4), 4)
	for name, side := range map[string]cu.Side{"nil pitched memory": (*cu.PitchedMemory)(nil).Side(), "zero": {}} {
		for call, err := range map[string]error{
			"from":             cu.Copy2D(s, host, side, 4, 1),
			"to":               cu.Copy2DAsync(s, side, host, 4, 1),
			"layers":           cu.Copy3DAsync(s, side, host, 4, 1, 1),
			"between contexts": cu.Copy3DAsync(s, cu.Side{Context: ctx}, host, 4, 1, 1),
			"no rows":          cu.Copy2DAsync(s, side, host, 4, 0),
		} {
			require.ErrorIs(t, err, cu.ErrClosed, "%s, %s", name, call)
			require.NotErrorIs(t, err, cu.ErrTooShort, "%s, %s", name, call)
			require.ErrorContains(t, err, "the memory of a Side is nil", "%s, %s", name, call)
		}
	}
}
