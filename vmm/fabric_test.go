package vmm_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/vmm"
)

// FAULTS 45, D20 of docs/driver-facts.md: without an IMEX channel a buffer for fabric handles is not
// made, and the error says what is missing.
func TestFault45_FabricBuffer(t *testing.T) {
	_, dev, _, _ := tidy(t)
	yes := ok(dev.SupportsFabric())(t)
	if yes {
		t.Skip("there is an IMEX channel here")
	}
	_, err := vmm.New(dev, 1, vmm.WithFabric())
	require.ErrorIs(t, err, cu.ErrNotPermitted)
	require.ErrorContains(t, err, "IMEX channel")

	plain := newBuffer(t, dev, 1)
	_, _, err = plain.ExportFabric()
	require.ErrorIs(t, err, vmm.ErrNotShareable)
	_, err = vmm.ImportFabric(dev, plain.Describe(), make([]cu.FabricHandle, 1))
	require.Error(t, err)
	require.ErrorContains(t, err, "IMEX channel")
	require.ErrorIs(t, errOf(vmm.ImportFabric(dev, plain.Describe(), nil)), vmm.ErrDescriptor)
	require.NoError(t, plain.Close())
	_, _, err = plain.ExportFabric()
	require.ErrorIs(t, err, cu.ErrClosed)
}

// Two processes share memory by fabric handles, where they can.
func TestFabricBuffer(t *testing.T) {
	out, err := cutest.Child(t.Context(), "fabric owner", "GPUFD_SOFT_IMEX=1").CombinedOutput()
	require.NoError(t, err, "%s", out)
	if cutest.Kind() == cu.Soft {
		require.Equal(t, "shared\n", string(out))
	}
}

// A fabricOffer describes memory to a child.
type fabricOffer struct {
	Descriptor vmm.Descriptor
	Handles    []cu.FabricHandle
}

func childFabricOwner() error {
	dev := get(get(cutest.Open()).Device(0))
	if can, err := dev.SupportsFabric(); err != nil || !can {
		fmt.Println("no fabric handles here")
		return err
	}
	g, _, err := dev.Granularity(cu.HandleFabric)
	if err != nil {
		return err
	}
	buf := get(vmm.New(dev, 2*g, vmm.WithFabric(), vmm.WithChunkSize(g)))
	ctx := get(dev.PrimaryContext())
	must(cu.CopyToDevice(ctx, buf.Ptr(), noise(2*g, 1)))
	var offer fabricOffer
	if offer.Descriptor, offer.Handles, err = buf.ExportFabric(); err != nil {
		return err
	}
	text := get(json.Marshal(offer))
	cmd := cutest.Child(context.Background(), "fabric importer", descriptorEnv+"="+string(text))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return errors.Join(cmd.Run(), buf.Close(), ctx.Close())
}

func childFabricImporter() error {
	var offer fabricOffer
	must(json.Unmarshal([]byte(os.Getenv(descriptorEnv)), &offer))
	drv := get(cutest.Open())
	dev := get(drv.DeviceByUUID(offer.Descriptor.Device))
	buf := get(vmm.ImportFabric(dev, offer.Descriptor, offer.Handles))
	ctx := get(dev.PrimaryContext())
	got := make([]byte, buf.Size())
	must(cu.CopyToHost(ctx, got, buf.Ptr()))
	if string(got) != string(noise(buf.Size(), 1)) {
		return errors.New("the owner's bytes are not there")
	}
	bad := append([]cu.FabricHandle(nil), offer.Handles...)
	bad[1] = cu.FabricHandle{}
	if _, err := vmm.ImportFabric(dev, offer.Descriptor, bad); err == nil {
		return errors.New("zeros were taken for a handle")
	}
	if _, _, err := buf.ExportFabric(); !errors.Is(err, vmm.ErrNotShareable) {
		return fmt.Errorf("export of imported memory: %v", err)
	}
	fmt.Println("shared")
	return errors.Join(buf.Close(), ctx.Close())
}
