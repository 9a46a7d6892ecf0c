package vmm_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/vmm"
)

func BenchmarkNew(b *testing.B) {
	dev := cutest.Device(b)
	cutest.Context(b, dev)
	g := granularity(b, dev)
	for name, opts := range map[string][]vmm.NewOption{"1 chunk": nil, "4 chunks": {vmm.WithChunkSize(g)}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				buf, err := vmm.New(dev, 4*g, opts...)
				require.NoError(b, err)
				require.NoError(b, buf.Close())
			}
		})
	}
}

// BenchmarkImport is what a consumer does with the descriptors it got, and the end of
// it: with the software driver, and with a driver that does nothing, which leaves the
// work of packages vmm and cu. import-ns is the time for the import alone.
func BenchmarkImport(b *testing.B) {
	dev := cutest.Device(b)
	g := granularity(b, dev)
	idle := idleDevice(b)
	for _, c := range []struct {
		name   string
		dev    *cu.Device
		chunks uint64
	}{{"1 chunk", dev, 1}, {"idle driver, 1 chunk", idle, 1}, {"idle driver, 4 chunks", idle, 4}} {
		buf := newBuffer(b, dev, c.chunks*g, vmm.WithChunkSize(g))
		d, files, err := buf.Export()
		require.NoError(b, err)
		b.Run(c.name, func(b *testing.B) {
			var imports time.Duration
			for b.Loop() {
				begin := time.Now()
				got, err := vmm.Import(c.dev, d, files)
				imports += time.Since(begin)
				if err := errors.Join(err, got.Close()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(imports.Nanoseconds())/float64(b.N), "import-ns/op")
		})
		closeFiles(b, files)
	}
}

// idleDevice is a device of a driver that reports success for each call of virtual
// memory and does nothing.
func idleDevice(b *testing.B) *cu.Device {
	b.Helper()
	drv, err := cutest.Open(cu.WithHook(func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		switch call.Symbol() {
		case "cuMemImportFromShareableHandle", "cuMemAddressReserve":
			storeWord(call.Arg(0), 1<<21)
		case "cuMemGetAllocationPropertiesFromHandle":
			storeLocation(call.Arg(0), sys.CU_MEM_LOCATION_TYPE_DEVICE)
		case "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemAddressFree", "cuMemRelease":
		default:
			return next()
		}
		return sys.CUDA_SUCCESS
	}))
	require.NoError(b, err)
	dev, err := drv.Device(0)
	require.NoError(b, err)
	return dev
}
