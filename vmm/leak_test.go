package vmm_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/testenv/leak"
	"github.com/gpufd/gpufd/vmm"
)

// A planted leak: what is lost while mapped is reported with the stack that
// made it, and stays mapped, as a kernel may still use it (D13 of docs/driver-facts.md). That the
// suite fails on such a report proves nothing unless one comes.
func TestLostMappingIsReportedAndStays(t *testing.T) {
	for name, plant := range map[string]func(*testing.T, *cu.Device, uint64) (cu.DevicePtr, uint64){
		"buffer": func(t *testing.T, dev *cu.Device, g uint64) (cu.DevicePtr, uint64) {
			buf := ok(vmm.New(dev, 2*g, vmm.WithChunkSize(g)))(t)
			return buf.Ptr(), 2 * g
		},
		"view": func(t *testing.T, dev *cu.Device, g uint64) (cu.DevicePtr, uint64) {
			buf := ok(vmm.New(dev, g))(t)
			view := ok(buf.NewView(cu.ReadWrite))(t)
			require.NoError(t, buf.Close())
			return view.Ptr(), g
		},
		"mapping": func(t *testing.T, dev *cu.Device, g uint64) (cu.DevicePtr, uint64) {
			r := ok(vmm.Reserve(dev.Driver(), g))(t)
			a := ok(vmm.Create(dev, g))(t)
			m := ok(r.Map(0, a))(t)
			require.NoError(t, m.SetAccess(cu.ReadWrite))
			return m.Ptr(), g
		},
		"buffer in a given reservation": func(t *testing.T, dev *cu.Device, g uint64) (cu.DevicePtr, uint64) {
			r := ok(vmm.Reserve(dev.Driver(), g))(t)
			buf := ok(vmm.New(dev, g, vmm.WithReservation(r)))(t)
			return buf.Ptr(), g
		},
		"imported buffer": func(t *testing.T, dev *cu.Device, g uint64) (cu.DevicePtr, uint64) {
			return lostImport(t, dev, g)
		},
		"imported buffer with a stack": func(t *testing.T, dev *cu.Device, g uint64) (cu.DevicePtr, uint64) {
			stack := make(chan cu.Stack)
			go func() { stack <- func() cu.Stack { return cu.Here(0) }() }()
			return lostImport(t, dev, g, vmm.WithStack(<-stack))
		},
	} {
		t.Run(name, func(t *testing.T) {
			require.Empty(t, cutest.TakeLeaks())
			b, dev, ctx, _ := tidy(t)
			p, size := plant(t, dev, granularity(t, dev))
			unmapped := b.count("cuMemUnmap")
			var leaks []cu.Leak
			eventuallyCollected(t, func() bool { leaks = append(leaks, cutest.TakeLeaks()...); return len(leaks) > 0 })
			require.Len(t, leaks, 1)
			require.Contains(t, leaks[0].What, "at "+p.String())
			require.Contains(t, leaks[0].String(), "was lost without Close")
			require.Contains(t, leaks[0].Stack.String(), "TestLostMappingIsReportedAndStays")
			require.Contains(t, leaks[0].Stack.String(), "leak_test.go:")
			require.Equal(t, name == "imported buffer", strings.Contains(leaks[0].Stack.String(), "lostImport"), leaks[0])

			require.Equal(t, unmapped, b.count("cuMemUnmap"))
			want := noise(size, 1)
			write(t, ctx, p, want)
			require.True(t, string(want) == string(read(t, ctx, p, size)))

			g := granularity(t, dev)
			for off := uint64(0); off < size; off += g { // as vmm would have
				require.NoError(t, dev.Driver().Unmap(p.Add(off), g))
			}
			require.NoError(t, dev.Driver().FreeAddress(p, size))
			eventuallyCollected(t, func() bool { return b.owed() == owesNothing })
		})
	}
}

// lostImport imports memory and loses it.
func lostImport(t *testing.T, dev *cu.Device, g uint64, opts ...vmm.ImportOption) (cu.DevicePtr, uint64) {
	buf := ok(vmm.New(dev, g))(t)
	got := importFrom(t, dev, buf, append(opts, vmm.WithAccess(cu.ReadWrite))...)
	require.NoError(t, buf.Close())
	return got.Ptr(), g
}

// A closed mapping is not reported.
func TestClosedMappingIsNotReported(t *testing.T) {
	b, dev, _, g := tidy(t)
	func() {
		for range 8 {
			buf := ok(vmm.New(dev, 2*g, vmm.WithChunkSize(g)))(t)
			require.NoError(t, ok(buf.NewView(cu.ReadOnly))(t).Close())
			require.NoError(t, buf.Close())
		}
	}()
	func() { // a lost allocation shows that cleanups have run
		require.NoError(t, errOf(vmm.Create(dev, g)))
	}()
	eventuallyCollected(t, func() bool { return b.owed() == owesNothing })
	require.Empty(t, cutest.TakeLeaks())
}

// Exported descriptors say who made them, the driver or a duplicate.
func TestExportedDescriptorsTellTheirMaker(t *testing.T) {
	_, dev := bookkept(t)
	a := ok(vmm.Create(dev, granularity(t, dev)))(t)
	before := leak.OpenFDs()
	f := ok(a.Export())(t)
	left := strings.Join(leak.OpenFDs().Since(before), "")
	require.Contains(t, left, "github.com/gpufd/gpufd/cu.(*MemHandle).Export")
	require.Contains(t, left, "github.com/gpufd/gpufd/vmm.dup")
	require.Equal(t, 2, strings.Count(left, t.Name()), left)
	require.NoError(t, f.Close())
	require.NoError(t, a.Close())
	require.Empty(t, leak.OpenFDs().Since(before))
}
