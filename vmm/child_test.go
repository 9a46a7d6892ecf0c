package vmm_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/testenv"
	"github.com/gpufd/gpufd/vmm"
)

// descriptorEnv tells a child what the descriptors from 3 on are; doEnv what
// to do.
const (
	descriptorEnv = testenv.Prefix + "DESCRIPTOR"
	doEnv         = testenv.Prefix + "DO"
)

// runChild hands buf to a child process and waits for its end.
func runChild(t *testing.T, buf *vmm.Buffer, name, do string) {
	t.Helper()
	d, files := export(t, buf)
	text := ok(json.Marshal(d))(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := cutest.Child(ctx, name, descriptorEnv+"="+string(text), doEnv+"="+do)
	cmd.ExtraFiles = files
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	closeFiles(t, files)
}

// attach imports what the parent handed over.
func attach(a cu.Access) (*vmm.Buffer, *cu.Context, error) {
	var d vmm.Descriptor
	must(json.Unmarshal([]byte(os.Getenv(descriptorEnv)), &d))
	drv := get(cutest.Open())
	dev := get(drv.DeviceByUUID(d.Device))
	var files []*os.File
	for i := range d.Chunks {
		files = append(files, os.NewFile(uintptr(3+i), "inherited"))
	}
	buf, err := vmm.Import(dev, d, files, vmm.WithAccess(a)) // D7 of docs/driver-facts.md: before any context
	for _, f := range files {
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return nil, nil, err
	}
	ctx, err := dev.PrimaryContext()
	return buf, ctx, err
}

// The point of it all: the same bytes in two processes, without a copy.
func TestChildSeesTheBytesAndWritesThem(t *testing.T) {
	_, dev, ctx, g := tidy(t)
	for _, chunk := range []uint64{0, g} {
		buf := ok(vmm.New(dev, 2*g, vmm.WithChunkSize(chunk)))(t)
		write(t, ctx, buf.Ptr(), noise(2*g, 1))
		runChild(t, buf, "reads and writes", "")
		require.True(t, string(noise(2*g, 2)) == string(read(t, ctx, buf.Ptr(), 2*g)))
		require.NoError(t, buf.Close())
	}
}

func childReadsAndWrites() error {
	buf, ctx, err := attach(cu.ReadWrite)
	if err != nil {
		return err
	}
	got := make([]byte, buf.Size())
	must(cu.CopyToHost(ctx, got, buf.Ptr()))
	if string(got) != string(noise(buf.Size(), 1)) {
		return errors.New("the parent's bytes are not there")
	}
	must(cu.CopyToDevice(ctx, buf.Ptr(), noise(buf.Size(), 2)))
	return errors.Join(buf.Close(), ctx.Close())
}

// Invariant 7: a consumer that attached read-only cannot change the bytes by
// any call of this library. Each call has a process of its own, as a failure
// may be sticky (D5).
//
//fault:rows 70
func TestReadOnlyChildCannotChangeTheBytes(t *testing.T) {
	_, dev, ctx, g := tidy(t)
	buf := newBuffer(t, dev, g)
	want := noise(g, 3)
	write(t, ctx, buf.Ptr(), want)
	for do := range writes(nil, 0) {
		runChild(t, buf, "must not write", do)
		require.True(t, string(want) == string(read(t, ctx, buf.Ptr(), g)), do)
	}
}

// writes are the calls that change device memory.
func writes(ctx *cu.Context, p cu.DevicePtr) map[string]func() error {
	host := make([]byte, 4096)
	return map[string]func() error{
		"CopyToDevice":      func() error { return cu.CopyToDevice(ctx, p, host) },
		"CopyToDeviceAsync": func() error { return cu.CopyToDeviceAsync(ctx.NullStream(), p, host) },
		"CopyDevice":        func() error { return cu.Copy(ctx, p, p.Add(8192), 4096) },
		"Fill 8":            func() error { return cu.Fill(ctx, p, uint8(0), 4096) },
		"Fill 16":           func() error { return cu.Fill(ctx, p, uint16(0), 2048) },
		"Fill 32":           func() error { return cu.Fill(ctx, p, uint32(0), 1024) },
	}
}

func childMustNotWrite() error {
	buf, ctx, err := attach(cu.ReadOnly)
	if err != nil {
		return err
	}
	do := os.Getenv(doEnv)
	defer ctx.Close()
	defer buf.Close()
	err = errors.Join(writes(ctx, buf.Ptr())[do](), ctx.Synchronize(context.Background()))
	if err == nil {
		return fmt.Errorf("%s into a read-only mapping succeeded", do)
	}
	return nil
}
