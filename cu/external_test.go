package cu_test

import (
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// exportedMemory is a descriptor of memory of the device, which is mapped in this
// process until the test ends, too.
func exportedMemory(t testing.TB, dev *cu.Device, size uint64) (*os.File, cu.DevicePtr) {
	t.Helper()
	p, m := mappedMemory(t, dev, size)
	require.NoError(t, dev.Driver().SetAccess(p, size, cu.ReadWrite, dev))
	return ok(m.Export())(t), p
}

// memfd is what a Vulkan without a GPU exports.
func memfd(t testing.TB, size int) *os.File {
	t.Helper()
	if cutest.Kind() != cu.Soft {
		t.Skip("a GPU's driver takes no memfd")
	}
	f := os.NewFile(uintptr(ok(unix.MemfdCreate("vulkan", unix.MFD_CLOEXEC))(t)), "memfd")
	require.NoError(t, f.Truncate(int64(size)))
	return untilEnd(t, f)
}

// C42: the memory is the exporter's, also when descriptor and external memory are
// gone; the descriptor stays the caller's (invariant 3).
func TestExternalMemoryIsTheExporters(t *testing.T) {
	s, _, dev, ctx := spiedContext(t)
	g := granularity(t, dev)
	f, p := exportedMemory(t, dev, 2*g)
	require.NoError(t, cu.Fill(ctx, p, uint32(1), g/2))
	require.NoError(t, cu.Fill(ctx, p.Add(g+4096), uint32(7), 1024))

	fds := cutest.Descriptors()
	m := ok(ctx.ImportExternal(f, 2*g, 0))(t)
	require.Equal(t, 2*g, m.Size())
	require.Equal(t, fds, cutest.Descriptors(), "the driver closes the duplicate")
	require.NoError(t, errOf(f.Stat()), "and leaves the caller's open")
	require.NoError(t, f.Close())

	whole := ok(m.Map(0, 2*g))(t)
	part := ok(m.Map(g+4096, 4096))(t)
	require.EqualValues(t, 4096, part.Size())
	require.NoError(t, m.Close())
	require.NoError(t, m.Close())
	require.Equal(t, 1, s.count("cuDestroyExternalMemory"))
	require.EqualValues(t, 7, readBack[uint32](t, ctx, part.Ptr(), 1024)[1023])
	require.NoError(t, cu.Fill(ctx, whole.Ptr().Add(g-4), uint32(9), 1))
	require.EqualValues(t, 9, readBack[uint32](t, ctx, p.Add(g-4), 1)[0])

	require.NoError(t, whole.Close())
	require.NoError(t, whole.Close())
	require.Zero(t, whole.Ptr())
	require.NoError(t, part.Close())
	require.Equal(t, 2, s.count("cuMemFree_v2"))
	require.EqualValues(t, 7, readBack[uint32](t, ctx, p.Add(g+4096), 1)[0], "the exporter has it still")
}

// A kernel takes a buffer as it takes memory of Alloc.
func TestExternalBufferIsAnArgument(t *testing.T) {
	_, dev, ctx := driverContext(t)
	f, p := exportedMemory(t, dev, granularity(t, dev))
	m := untilEnd(t, ok(ctx.ImportExternal(f, granularity(t, dev), 0))(t))
	require.NoError(t, f.Close())
	b := untilEnd(t, ok(m.Map(4096, 4096))(t))
	kernel := ok(untilEnd(t, ok(ctx.LoadModule([]byte(storesSeven)))(t)).Function("stores"))(t)
	require.NoError(t, kernel.Launch(ctx.NullStream(), cu.LaunchConfig{Grid: cu.Dim3{X: 1}, Block: cu.Dim3{X: 1}}, b))
	require.EqualValues(t, 7, readBack[uint32](t, ctx, p.Add(4096), 1)[0])
}

const storesSeven = `.version 7.0
.target sm_60
.address_size 64
.visible .entry stores(.param .u64 to) {
	.reg .u64 %p;
	ld.param.u64 %p, [to];
	cvta.to.global.u64 %p, %p;
	st.global.u32 [%p], 7;
	ret;
}`

// Memory of another API is no device memory of ours, and shows both sides' bytes.
func TestExternalMemfd(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	f := memfd(t, 10000)
	require.NoError(t, errOf(f.WriteAt([]byte("made elsewhere"), 5000)))
	free := freeMemory(t, ctx)
	m := ok(ctx.ImportExternal(f, 10000, 0))(t)
	b := ok(m.Map(5000, 5000))(t)
	require.Equal(t, free, freeMemory(t, ctx))
	require.Equal(t, "made elsewhere", string(readBack[byte](t, ctx, b.Ptr(), 14)))
	require.NoError(t, cu.CopyToDevice(ctx, b.Ptr().Add(4990), []byte("the end...")))
	require.ErrorIs(t, cu.CopyToDevice(ctx, b.Ptr().Add(4991), []byte("beyond it.")), cu.ErrInvalidValue)
	got := make([]byte, 10)
	require.NoError(t, errOf(f.ReadAt(got, 9990)))
	require.Equal(t, "the end...", string(got))
	require.NoError(t, b.Close())
	require.NoError(t, m.Close())
}

// Nothing wrong reaches the driver that can be seen before, and no descriptor is
// lost on the way (invariant 4).
func TestExternalErrors(t *testing.T) {
	s, _, dev, ctx := spiedContext(t)
	g := granularity(t, dev)
	f, _ := exportedMemory(t, dev, g)
	untilEnd(t, f)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	untilEnd(t, r)
	untilEnd(t, w)
	gone := ok(os.Open(os.DevNull))(t)
	require.NoError(t, gone.Close())
	fds := cutest.Descriptors()
	for what, c := range map[string]struct {
		file  *os.File
		size  uint64
		flags cu.ExternalFlags
		want  error
		text  string
	}{
		"no file":     {nil, g, 0, os.ErrInvalid, "cu: importing external memory: no file"},
		"closed file": {gone, g, 0, os.ErrClosed, "cu: importing external memory"},
		"size 0":      {f, 0, 0, cu.ErrInvalidValue, "the size is 0"},
		"a pipe":      {r, g, 0, nil, "cuImportExternalMemory"},
		"flags":       {f, g, 1 << 9, nil, "cuImportExternalMemory"},
	} {
		_, err := ctx.ImportExternal(c.file, c.size, c.flags)
		require.ErrorContains(t, err, c.text, what)
		if c.want != nil {
			require.ErrorIs(t, err, c.want, what)
		}
	}
	if cutest.Kind() == cu.Soft { // memory is a file there, which has a size
		for _, size := range []uint64{2 * g, 1 << 63, ^uint64(0)} {
			_, err := ctx.ImportExternal(f, size, 0)
			require.ErrorIs(t, err, cu.ErrInvalidValue)
			require.ErrorContains(t, err, "the descriptor's file has")
		}
	}
	require.Zero(t, s.count("cuImportExternalMemory"))
	require.Equal(t, fds, cutest.Descriptors())

	m := untilEnd(t, ok(ctx.ImportExternal(f, g, 0))(t))
	for _, c := range []struct {
		offset, size uint64
		text         string
	}{
		{0, 0, "the size is 0"}, {0, g + 1, "do not lie in"}, {g, 1, "do not lie in"}, {g - 1, 2, "do not lie in"},
		{^uint64(0), 2, "do not lie in"}, {1, ^uint64(0), "do not lie in"},
	} {
		_, err := m.Map(c.offset, c.size)
		require.ErrorIs(t, err, cu.ErrInvalidValue)
		require.ErrorContains(t, err, c.text)
	}
	require.Zero(t, s.count("cuExternalMemoryGetMappedBuffer"))
}

// Invariant 4: a call that fails leaves the descriptor and the memory as they were.
func TestExternalCallsThatFail(t *testing.T) {
	s, _, dev, ctx := spiedContext(t)
	g := granularity(t, dev)
	f, _ := exportedMemory(t, dev, g)
	untilEnd(t, f)
	fds := cutest.Descriptors()
	refused := s.Fail("cuImportExternalMemory", cu.ErrOutOfMemory)
	require.ErrorIs(t, errOf(ctx.ImportExternal(f, g, 0)), cu.ErrOutOfMemory)
	require.Equal(t, fds, cutest.Descriptors())
	refused.Stop()
	m := untilEnd(t, ok(ctx.ImportExternal(f, g, 0))(t))
	s.Fail("cuExternalMemoryGetMappedBuffer", cu.ErrOutOfMemory)
	require.ErrorIs(t, errOf(m.Map(0, g)), cu.ErrOutOfMemory)
	require.Empty(t, buffersOf(ctx))
}

func buffersOf(ctx *cu.Context) (n []cu.Unclosed) {
	for _, u := range ctx.Unclosed() {
		if u.Kind == "buffer of external memory" {
			n = append(n, u)
		}
	}
	return n
}

// A context ends what is left in it: buffers first.
func TestContextEndsExternalMemory(t *testing.T) {
	s, _, dev := spied(t)
	g := granularity(t, dev)
	f, _ := exportedMemory(t, dev, g)
	ctx := ok(dev.NewContext(cu.SchedAuto))(t)
	var closers []io.Closer
	var buffers []*cu.ExternalBuffer
	for range 8 {
		m := ok(ctx.ImportExternal(f, g, 0))(t)
		b := ok(m.Map(0, g))(t)
		closers, buffers = append(closers, m, b), append(buffers, b)
	}
	require.NoError(t, f.Close())
	require.Len(t, buffersOf(ctx), 8)
	require.NoError(t, ctx.Close())
	order := s.sequence("cuMemFree_v2", "cuDestroyExternalMemory")
	require.Len(t, order, 16)
	for i, symbol := range order {
		require.Equal(t, i >= 8, symbol == "cuDestroyExternalMemory", "%v", order)
	}
	for _, c := range closers {
		require.NoError(t, c.Close())
	}
	for _, b := range buffers {
		require.Zero(t, b.Ptr())
	}
	require.Len(t, s.sequence("cuMemFree_v2", "cuDestroyExternalMemory"), 16)
	require.ErrorIs(t, errOf(ctx.ImportExternal(nil, 0, 0)), cu.ErrClosed)
}
