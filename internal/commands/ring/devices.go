package ring

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/vmm"
)

// chooseDevices takes the devices that can take part, in the driver's order, up to the
// number of processes. It prints why others cannot.
func (r *ring) chooseDevices() error {
	var unfit []string
	for _, dev := range r.app.Driver.Devices() {
		if r.procs > 0 && len(r.devices) == r.procs {
			break
		}
		why, err := r.unfit(dev)
		if err != nil {
			return err
		}
		if why != nil {
			unfit = append(unfit, why.Error())
			r.app.Say("skipped", app.Fields{"device": dev.Ordinal(), "why": why.Error()}, "Not using CUDA device %d: %s", dev.Ordinal(), cli.OneLine(why))
			continue
		}
		r.devices = append(r.devices, dev)
	}
	if len(r.devices) == 0 {
		return cli.Machinef("no device can take part: %s", strings.Join(unfit, "; "))
	}
	for _, dev := range r.devices {
		r.app.Say("device", app.Fields{"device": dev.Ordinal(), "name": dev.Name(), "uuid": dev.UUID().String()},
			"Using CUDA device %d: %s", dev.Ordinal(), dev.Name())
	}
	return reachEachOther(r.devices)
}

// unfit returns why a device cannot take part beside those that do.
func (r *ring) unfit(dev *cu.Device) (why, err error) {
	if why := cli.NeedVMM(dev); why != nil {
		return why, nil
	}
	mode, err := dev.ComputeMode()
	if err != nil {
		return nil, err
	}
	if mode != cu.ComputeModeDefault {
		return fmt.Errorf("device %s is in compute mode %s, and several processes would use it (nvidia-smi -c DEFAULT)", dev, mode), nil
	}
	for _, other := range r.devices {
		there, err := dev.CanAccessPeer(other)
		back, backErr := other.CanAccessPeer(dev)
		if err := errors.Join(err, backErr); err != nil {
			return nil, err
		}
		if !there || !back {
			how := "nvidia-smi topo -p2p r"
			if dev.Driver().Kind() == cu.Soft {
				how = "GPUFD_SOFT_PEERS=0"
			}
			return fmt.Errorf("device %s and device %s cannot reach each other's memory (%s)", dev, other, how), nil
		}
	}
	return nil, nil
}

// reachEachOther tries whether each two devices can reach each other, as the driver says.
// It uses contexts for that only; the chunks have their own access rights.
func reachEachOther(devices []*cu.Device) (err error) {
	if len(devices) < 2 {
		return nil
	}
	var contexts []*cu.Context
	defer func() {
		for _, c := range contexts {
			err = errors.Join(err, c.Close())
		}
	}()
	for _, dev := range devices {
		c, err := dev.NewContext(0)
		if err != nil {
			return err
		}
		contexts = append(contexts, c)
	}
	for _, c := range contexts {
		for _, peer := range contexts {
			if c == peer {
				continue
			}
			if err := c.EnablePeerAccess(peer); err != nil {
				return cli.Machinef("device %s cannot reach device %s, although the driver says that it can; choose others with CUDA_VISIBLE_DEVICES: %w",
					c.Device(), peer.Device(), err)
			}
		}
	}
	return nil
}

// exportAll returns a descriptor of each chunk.
func exportAll(chunks []*vmm.Allocation) (files []*os.File, err error) {
	for _, a := range chunks {
		f, err := a.Export()
		if err != nil {
			return files, err
		}
		files = append(files, f)
	}
	return files, nil
}
