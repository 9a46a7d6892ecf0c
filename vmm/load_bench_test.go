package vmm_test

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/vmm"
)

var (
	benchSize = flag.String("size", "", "how much BenchmarkLoad loads, as 16GiB")
	benchDir  = flag.String("dir", "", "the directory where its file may lie, which takes as much room")
)

// BenchmarkLoad loads a file, with other ways to do so beside it:
//
//   - limit: pinned memory to the device, no file;
//   - one thread: read(2) into pinned memory, copy, and so on;
//   - registered: the file mapped and pinned (cuMemHostRegister), and copied; pinning
//     counts;
//   - workers and slots of Load;
//   - cold: the page cache does not have the file; read past it, or through it;
//   - store: the way back, into the page cache.
func BenchmarkLoad(b *testing.B) {
	r := newLoadBench(b)
	b.Run("limit", r.limit)
	b.Run("one thread", r.oneThread)
	b.Run("registered", r.registered)
	b.Run("load", func(b *testing.B) { r.load(b, vmm.TransferOptions{}, false) })
	for _, workers := range []int{1, 4, 8, 16} {
		for _, slot := range []uint64{1, 2, 4, 8, 16} {
			b.Run(fmt.Sprintf("load/%d workers, slots of %d MiB", workers, slot), func(b *testing.B) {
				r.load(b, vmm.TransferOptions{Workers: workers, Slot: slot << 20}, false)
			})
		}
	}
	b.Run("cold", func(b *testing.B) { r.load(b, vmm.TransferOptions{}, true) })
	b.Run("cold, buffered", func(b *testing.B) { r.load(b, vmm.TransferOptions{Buffered: true}, true) })
	b.Run("store", r.store)
}

type loadBench struct {
	ctx  *cu.Context
	buf  *vmm.Buffer
	file *os.File
	size uint64
}

func newLoadBench(b *testing.B) *loadBench {
	size := cli.Size(64 << 20)
	if cutest.Kind() == cu.CUDA {
		size = 16 << 30
	}
	if *benchSize != "" {
		require.NoError(b, size.Set(*benchSize))
	}
	dev := cutest.Device(b)
	r := &loadBench{ctx: cutest.Context(b, dev), buf: newBuffer(b, dev, uint64(size)), size: uint64(size)}
	dir := *benchDir
	if dir == "" {
		dir = b.TempDir()
	}
	f, err := os.CreateTemp(dir, "gpufd-load")
	require.NoError(b, err)
	b.Cleanup(func() { _ = f.Close() })
	require.NoError(b, os.Remove(f.Name()))
	block := noise(min(r.size, 64<<20), 1)
	for at := uint64(0); at < r.size; at += uint64(len(block)) {
		_, err := f.WriteAt(block[:min(uint64(len(block)), r.size-at)], int64(at))
		require.NoError(b, err)
	}
	r.file = f
	return r
}

func (r *loadBench) segments() []vmm.Segment { return []vmm.Segment{{File: r.file, Size: r.size}} }

// measure takes the time of f, which moves all bytes.
func (r *loadBench) measure(b *testing.B, prepare, f func() error) {
	var took time.Duration
	for b.Loop() {
		require.NoError(b, prepare())
		begin := time.Now()
		require.NoError(b, f())
		took += time.Since(begin)
	}
	b.ReportMetric(float64(r.size)*float64(b.N)/float64(took.Nanoseconds()), "GB/s")
	b.ReportMetric(0, "ns/op") // with what prepare takes it would say nothing
}

func (r *loadBench) load(b *testing.B, o vmm.TransferOptions, cold bool) {
	r.measure(b, func() error { return r.prepare(cold) }, func() error { return r.buf.Load(b.Context(), r.segments(), o) })
}

// prepare has the page cache drop the file, or have it.
func (r *loadBench) prepare(cold bool) error {
	if !cold {
		return nil
	}
	if err := r.file.Sync(); err != nil {
		return err
	}
	return unix.Fadvise(int(r.file.Fd()), 0, 0, unix.FADV_DONTNEED)
}

func nothing() error { return nil }

func (r *loadBench) store(b *testing.B) {
	r.measure(b, nothing, func() error { return r.buf.Store(b.Context(), r.segments(), vmm.TransferOptions{}) })
}

// pinned is one block of pinned memory.
func (r *loadBench) pinned(b *testing.B) *cu.HostMemory {
	m, err := r.ctx.AllocHost(min(r.size, 64<<20), 0)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, m.Close()) })
	return m
}

func (r *loadBench) limit(b *testing.B) {
	m, s := r.pinned(b), r.ctx.NullStream()
	r.measure(b, nothing, func() error {
		for at := uint64(0); at < r.size; at += m.Size() {
			if err := cu.CopyToDeviceAsync(s, r.buf.Ptr().Add(at), m.Bytes()[:min(m.Size(), r.size-at)]); err != nil {
				return err
			}
		}
		return s.Synchronize(b.Context())
	})
}

func (r *loadBench) oneThread(b *testing.B) {
	m := r.pinned(b)
	r.measure(b, nothing, func() error {
		for at := uint64(0); at < r.size; at += m.Size() {
			part := m.Bytes()[:min(m.Size(), r.size-at)]
			if _, err := r.file.ReadAt(part, int64(at)); err != nil {
				return err
			}
			if err := cu.CopyToDevice(r.ctx, r.buf.Ptr().Add(at), part); err != nil {
				return err
			}
		}
		return nil
	})
}

func (r *loadBench) registered(b *testing.B) {
	mapped, err := unix.Mmap(int(r.file.Fd()), 0, int(r.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(b, err)
	defer func() { require.NoError(b, unix.Munmap(mapped)) }()
	r.measure(b, nothing, func() error {
		pin, err := r.ctx.RegisterHost(mapped, 0)
		if err != nil {
			return err
		}
		if err := cu.CopyToDevice(r.ctx, r.buf.Ptr(), mapped); err != nil {
			return err
		}
		return pin.Close()
	})
}
