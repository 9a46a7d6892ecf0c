package mover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/keeper/internal/moving"
	"github.com/gpufd/gpufd/kernels/digest"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// makeChunk makes memory of the host, near the first device.
func makeChunk(drv *cu.Driver, j job) (d moving.Done, files []*os.File, err error) {
	d.Driver, d.Node = drv.Kind().String(), nodeOf(drv)
	a, err := vmm.CreateHost(drv, d.Node, j.Size)
	if err != nil {
		return d, nil, err
	}
	f, err := a.Export()
	if err = errors.Join(err, a.Close()); err != nil {
		return d, nil, err
	}
	return d, []*os.File{f}, nil
}

// nodeOf returns the NUMA node nearest to the first device, or 0 where the driver does not say.
func nodeOf(drv *cu.Driver) int {
	dev, err := drv.Device(0)
	if err != nil {
		return 0
	}
	node, err := dev.Attribute(cu.AttributeHostNUMAID)
	if err != nil {
		return 0
	}
	return max(int(node), 0)
}

// park copies a part to memory of the host, if it has its digest before and after.
func park(drv *cu.Driver, j job) (moving.Done, error) {
	w, err := newWork(drv, &j)
	if err != nil {
		return moving.Done{}, err
	}
	d, err := w.park(j)
	return d, errors.Join(err, w.close())
}

// unpark copies a part from memory of the host to new memory of its device, and returns that, if it has its digest.
func unpark(drv *cu.Driver, j job) (moving.Done, []*os.File, error) {
	w, err := newWork(drv, &j)
	if err != nil {
		return moving.Done{}, nil, err
	}
	d, files, err := w.unpark(j)
	if err = errors.Join(err, w.close()); err != nil {
		sock.DropFiles(files)
		return d, nil, err
	}
	return d, files, nil
}

// A work has what both directions need.
type work struct {
	is     vmm.Descriptor
	dev    *cu.Device
	ctx    *cu.Context
	stream *cu.Stream
	closes []func() error
}

// newWork finds the device of a job, and makes its context and a stream.
func newWork(drv *cu.Driver, j *job) (w *work, err error) {
	w = &work{}
	id, err := cu.ParseUUID(j.Device)
	if err == nil {
		w.dev, err = drv.DeviceByUUID(id)
	}
	if err == nil && j.Memory == nil {
		err = errors.New("a part without its memory's description")
	}
	if err != nil {
		return nil, err
	}
	w.is = j.Memory.Descriptor(drv.Kind(), id)
	if w.ctx, err = w.dev.PrimaryContext(); err != nil {
		return nil, err
	}
	w.closes = append(w.closes, w.ctx.Close)
	if w.stream, err = w.ctx.NewStream(); err != nil {
		return nil, errors.Join(err, w.close())
	}
	w.closes = append(w.closes, w.stream.Close)
	return w, nil
}

// check compares a job with what came of it: as many descriptors of a device as are due, and those of the host behind.
func (w *work) check(j job, device int) error {
	if len(j.files) != device+len(j.Chunks) {
		return fmt.Errorf("%d descriptors came for memory of %d chunks and %d of the host", len(j.files), device, len(j.Chunks))
	}
	if total := sum(j.Chunks); total < w.is.Size {
		return fmt.Errorf("a part of %d bytes does not fit the %d of the host", w.is.Size, total)
	}
	return nil
}

func sum(sizes []uint64) (total uint64) {
	for _, n := range sizes {
		total += n
	}
	return total
}

// close gives everything back, the last first.
func (w *work) close() error {
	var errs []error
	for i := len(w.closes) - 1; i >= 0; i-- {
		errs = append(errs, w.closes[i]())
	}
	w.closes = nil
	return errors.Join(errs...)
}

func (w *work) park(j job) (d moving.Done, err error) {
	if err := w.check(j, w.is.Chunks); err != nil {
		return d, err
	}
	buf, err := vmm.Import(w.dev, w.is, j.files[:w.is.Chunks])
	if err != nil {
		return d, err
	}
	w.closes = append(w.closes, buf.Close)
	if d.Damage, err = w.differs(buf, j.Digest); err != nil || d.Damage != "" {
		return d, err
	}
	began := time.Now()
	err = w.queue(j.files[w.is.Chunks:], j.Chunks, func(host cu.DevicePtr, at, n uint64) error {
		return cu.CopyAsync(w.stream, host, buf.Ptr().Add(at), n)
	})
	if d, err = w.copied(began, err); err == nil {
		d.Damage, err = w.differs(buf, j.Digest) // a writer that lives may have changed it meanwhile
	}
	return d, err
}

func (w *work) unpark(j job) (d moving.Done, files []*os.File, err error) {
	if err := w.check(j, 0); err != nil {
		return d, nil, err
	}
	buf, err := vmm.New(w.dev, w.is.Size, vmm.WithChunkSize(w.is.ChunkSize))
	if err != nil {
		return d, nil, err
	}
	w.closes = append(w.closes, buf.Close)
	began := time.Now()
	err = w.queue(j.files, j.Chunks, func(host cu.DevicePtr, at, n uint64) error {
		return cu.CopyAsync(w.stream, buf.Ptr().Add(at), host, n)
	})
	if err == nil {
		files, err = w.export(buf) // while the copies run: it takes nearly a millisecond a chunk
	}
	if d, err = w.copied(began, err); err == nil {
		d.Damage, err = w.differs(buf, j.Digest)
	}
	if err != nil || d.Damage != "" {
		sock.DropFiles(files)
		return d, nil, err
	}
	return d, files, nil
}

// export exports the memory of a part.
func (w *work) export(buf *vmm.Buffer) ([]*os.File, error) {
	is, files, err := buf.Export()
	if err == nil && (is.ChunkSize != w.is.ChunkSize || is.Chunks != w.is.Chunks) {
		err = fmt.Errorf("the device gives %d chunks of %d bytes, and the part had %d of %d", is.Chunks, is.ChunkSize, w.is.Chunks, w.is.ChunkSize)
	}
	return files, err
}

// differs compares the digest of a part, and describes what is wrong.
func (w *work) differs(buf *vmm.Buffer, want string) (damage string, err error) {
	k, err := digest.Load(w.ctx)
	if err != nil {
		return "", err
	}
	sum, err := k.Digest(context.Background(), w.stream, buf.Ptr(), w.is.Size)
	if err = errors.Join(err, k.Close()); err != nil {
		return "", err
	}
	if got := digest.Algorithm + ":" + sum.String(); got != want {
		damage = fmt.Sprintf("its digest is %s, and was %s", got, want)
	}
	return damage, nil
}

// queue maps memory of the host, for the device alone, and queues the copy of each chunk as soon as it is mapped: letting a
// device use memory takes nearly half as long as copying it.
func (w *work) queue(files []*os.File, sizes []uint64, move func(host cu.DevicePtr, at, n uint64) error) error {
	room, err := vmm.Reserve(w.dev.Driver(), sum(sizes))
	if err != nil {
		return err
	}
	w.closes = append(w.closes, room.Close)
	at := uint64(0)
	for i, size := range sizes {
		n := min(size, w.is.Size-at)
		if n == 0 {
			break
		}
		if err := w.mapHost(room, at, files[i], size); err != nil {
			return fmt.Errorf("chunk %d of the host's memory: %w", i, err)
		}
		if err := move(room.Ptr().Add(at), at, n); err != nil {
			return err
		}
		at += n
	}
	return nil
}

// copied waits for the copies, also if err says that one was not queued.
func (w *work) copied(began time.Time, err error) (moving.Done, error) {
	if err = errors.Join(err, w.stream.Synchronize(context.Background())); err != nil {
		return moving.Done{}, err
	}
	return moving.Done{Bytes: w.is.Size, Seconds: time.Since(began).Seconds()}, nil
}

func (w *work) mapHost(room *vmm.Reservation, at uint64, f *os.File, size uint64) error {
	a, err := vmm.ImportHost(w.dev.Driver(), f, size)
	if err != nil {
		return err
	}
	w.closes = append(w.closes, a.Close)
	m, err := room.Map(at, a)
	if err != nil {
		return err
	}
	w.closes = append(w.closes, m.Close)
	return m.SetAccess(cu.ReadWrite, w.dev)
}
