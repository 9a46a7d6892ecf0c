package cli

import (
	"errors"

	"github.com/gpufd/gpufd/cu"
)

// NeedVMM fails on a device whose memory cannot be shared as descriptors.
func NeedVMM(dev *cu.Device) error {
	managed, err := known(dev.SupportsVMM())
	fd, fdErr := known(dev.SupportsFD())
	switch {
	case err != nil || fdErr != nil:
		return errors.Join(err, fdErr)
	case !managed && dev.Driver().Kind() == cu.Soft:
		return Machinef("device %s does not support virtual memory management (CUDA_ERROR_NOT_SUPPORTED): GPUFD_SOFT_VMM=0 takes it away", dev)
	case !managed:
		return Machinef("device %s does not support virtual memory management (CUDA_ERROR_NOT_SUPPORTED): it needs compute capability 6.0 or newer, CUDA 10.2 or newer, and a driver mode that has it", dev)
	case !fd:
		return Machinef("device %s cannot export memory as file descriptors: that needs Linux and a driver of CUDA 10.2 or newer", dev)
	}
	return nil
}

// NeedIPC fails on a device whose memory cannot be shared by legacy handles.
func NeedIPC(dev *cu.Device) error {
	ok, err := known(dev.SupportsIPC())
	switch {
	case err != nil:
		return err
	case !ok:
		return Machinef("device %s does not support legacy IPC (CUDA_ERROR_NOT_SUPPORTED)", dev)
	}
	return nil
}

// known returns no for an attribute that the driver is too old to know.
func known(yes bool, err error) (bool, error) {
	if errors.Is(err, cu.ErrInvalidValue) {
		return false, nil
	}
	return yes, err
}
