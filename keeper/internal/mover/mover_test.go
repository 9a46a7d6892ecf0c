package mover_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/mover"
	"github.com/gpufd/gpufd/keeper/internal/moving"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/kernels/digest"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// moverArgument runs the test binary as a mover.
const moverArgument = "mover"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == moverArgument {
		if err := mover.Run(func(string) (*cu.Driver, error) { return cutest.Open() }); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	cutest.Main(m)
}

func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// started is a mover that ends with the test.
func started(t *testing.T) *moving.Mover {
	t.Helper()
	m, err := moving.Start([]string{"/proc/self/exe", moverArgument})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

// A part is memory of a device, and what a keeper knows of it.
type part struct {
	dev    *cu.Device
	bytes  []byte
	is     vmm.Descriptor
	files  []*os.File
	digest string
}

const granule = 2 << 20

// newPart is memory of three chunks, of which the last is not full.
func newPart(t *testing.T) part {
	t.Helper()
	p := part{dev: cutest.Device(t), bytes: make([]byte, 2*granule+granule/2+3)}
	if can, err := p.dev.Attribute(cu.AttributeHostNUMAVirtualMemoryManagementSupported); err != nil || can == 0 {
		t.Skip("no memory of NUMA nodes here: it came with CUDA 12.2")
	}
	for i := range p.bytes {
		p.bytes[i] = byte(i>>12 + i)
	}
	buf, err := vmm.New(p.dev, uint64(len(p.bytes)), vmm.WithChunkSize(granule))
	require.NoError(t, err)
	ctx, err := p.dev.PrimaryContext()
	require.NoError(t, err)
	require.NoError(t, cu.CopyToDevice(ctx, buf.Ptr(), p.bytes))
	p.is, p.files, err = buf.Export()
	require.NoError(t, err)
	require.NoError(t, buf.Close())
	require.NoError(t, ctx.Close())
	p.digest = digest.Algorithm + ":" + digest.Of(p.bytes).String()
	t.Cleanup(func() { sock.DropFiles(p.files) })
	return p
}

func (p part) job(op string, chunks ...uint64) moving.Job {
	return moving.Job{Op: op, Driver: p.dev.Driver().Kind().String(), Device: p.dev.UUID().String(), Memory: protocol.Describe(p.is), Digest: p.digest, Chunks: chunks}
}

// chunk makes memory of the host.
func chunk(t *testing.T, m *moving.Mover, size uint64) *os.File {
	t.Helper()
	d, files, err := m.Do(soon(t), moving.Job{Op: moving.OpChunk, Driver: "auto", Size: size})
	require.NoError(t, err)
	require.Len(t, files, 1)
	require.Equal(t, cutest.Kind().String(), d.Driver)
	t.Cleanup(func() { require.NoError(t, files[0].Close()) })
	return files[0]
}

// requireBytes requires that memory of a device has the bytes of a part.
func (p part) requireBytes(t *testing.T, files []*os.File) {
	t.Helper()
	buf, err := vmm.Import(p.dev, p.is, files)
	require.NoError(t, err)
	ctx, err := p.dev.PrimaryContext()
	require.NoError(t, err)
	got := make([]byte, len(p.bytes))
	require.NoError(t, cu.CopyToHost(ctx, got, buf.Ptr()))
	require.True(t, bytes.Equal(p.bytes, got))
	require.NoError(t, buf.Close())
	require.NoError(t, ctx.Close())
}

// A part goes to the host by one mover, and comes back by another, whose memory has the part's shape.
func TestParkAndUnpark(t *testing.T) {
	p := newPart(t)
	m := started(t)
	host := []*os.File{chunk(t, m, 2*granule), chunk(t, m, granule)}
	d, none, err := m.Do(soon(t), p.job(moving.OpPark, 2*granule, granule), append(p.files, host...)...)
	require.NoError(t, err)
	require.Empty(t, none)
	require.Empty(t, d.Damage)
	require.Equal(t, uint64(len(p.bytes)), d.Bytes)
	require.Positive(t, d.Seconds)
	require.NoError(t, m.Close())
	sock.DropFiles(p.files)
	p.files = nil

	m = started(t)
	d, files, err := m.Do(soon(t), p.job(moving.OpUnpark, 2*granule, granule), host...)
	require.NoError(t, err)
	require.Empty(t, d.Damage)
	require.Len(t, files, 3)
	require.NoError(t, m.Close())
	p.requireBytes(t, files)
	sock.DropFiles(files)
}

// Bytes without their digest are not moved, in either direction.
func TestDamage(t *testing.T) {
	p := newPart(t)
	m := started(t)
	host := chunk(t, m, 4*granule)
	_, _, err := m.Do(soon(t), p.job(moving.OpPark, 4*granule), append(p.files, host)...)
	require.NoError(t, err)
	was := p.digest
	p.digest = digest.Algorithm + ":" + digest.Of(nil).String()
	for _, job := range []struct {
		op    string
		files []*os.File
	}{{moving.OpPark, append(p.files, host)}, {moving.OpUnpark, []*os.File{host}}} {
		d, files, err := m.Do(soon(t), p.job(job.op, 4*granule), job.files...)
		require.NoError(t, err, job.op)
		require.Contains(t, d.Damage, was)
		require.Empty(t, files)
	}
}

// A part that its writer changes while it is parked is found damaged before the original is given up: what was parked well
// comes back well, whenever the writer writes.
func TestWriterWritesWhileParking(t *testing.T) {
	p := newPart(t)
	m := started(t)
	host := chunk(t, m, 4*granule)
	buf, err := vmm.Import(p.dev, p.is, p.files, vmm.WithAccess(cu.ReadWrite))
	require.NoError(t, err)
	ctx, err := p.dev.PrimaryContext()
	require.NoError(t, err)
	end, last := buf.Ptr().Add(uint64(len(p.bytes)-1)), p.bytes[len(p.bytes)-1]
	for i := range 100 {
		require.NoError(t, cu.CopyToDevice(ctx, end, []byte{last}))
		written := make(chan error, 1)
		time.AfterFunc(time.Duration(i)*50*time.Microsecond, func() { written <- cu.CopyToDevice(ctx, end, []byte{last + 1}) })
		d, _, err := m.Do(soon(t), p.job(moving.OpPark, 4*granule), append(p.files, host)...)
		require.NoError(t, err)
		require.NoError(t, <-written)
		if d.Damage != "" {
			continue
		}
		d, files, err := m.Do(soon(t), p.job(moving.OpUnpark, 4*granule), host)
		require.NoError(t, err)
		require.Empty(t, d.Damage, "round %d", i)
		sock.DropFiles(files)
	}
	require.NoError(t, buf.Close())
	require.NoError(t, ctx.Close())
}

// The mover refuses a job that it cannot do, with the reason, and goes on.
func TestRefused(t *testing.T) {
	p := newPart(t)
	m := started(t)
	host := chunk(t, m, granule)
	large := p.job(moving.OpUnpark, granule)
	large.Memory.Size, large.Memory.ChunkSize, large.Memory.Chunks = 1<<46, 1<<46, 1
	other := p.job(moving.OpPark, granule)
	other.Device = "GPU-00000000-0000-0000-0000-00000000ffff"
	for words, job := range map[string]moving.Job{
		"there is no operation": {Op: "x", Driver: "auto"},
		"does not fit the 2097": p.job(moving.OpUnpark, granule),
		"descriptors came":      p.job(moving.OpPark, granule),
		"does not fit":          large,
		"ffff":                  other,
		"description":           {Op: moving.OpPark, Driver: "auto", Device: p.dev.UUID().String()},
	} {
		var no *api.Error
		_, _, err := m.Do(soon(t), job, host)
		require.ErrorAs(t, err, &no, words)
		require.ErrorContains(t, err, words)
	}
	var no *api.Error
	_, _, err := m.Do(soon(t), moving.Job{Op: moving.OpChunk, Driver: "auto", Size: 1 << 46})
	require.ErrorAs(t, err, &no)
	require.Equal(t, api.NoRoom, no.Code)
}

// A mover that dies is an error that says so, and one whose keeper has gone ends.
func TestEnds(t *testing.T) {
	m, err := moving.Start([]string{"/bin/sh", "-c", "echo the reason >&2; exit 7"})
	require.NoError(t, err)
	_, _, err = m.Do(soon(t), moving.Job{Op: moving.OpChunk})
	require.ErrorContains(t, err, "exit status 7")
	require.ErrorContains(t, err, "the reason")
	require.NoError(t, m.Close())
	_, err = moving.Start([]string{"/nonexistent"})
	require.Error(t, err)

	m = started(t)
	p, err := sock.ProcessOf(m.Process())
	require.NoError(t, err)
	require.NoError(t, m.HangUp())
	require.NoError(t, p.Wait(soon(t)))
	require.NoError(t, p.Close())

	m, err = moving.Start([]string{"/bin/sleep", "1000"})
	require.NoError(t, err)
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, _, err = m.Do(short, moving.Job{Op: moving.OpChunk})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, m.Close())
}
