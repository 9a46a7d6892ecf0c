// Lesson 1: open a driver and a device.
//
// libcuda is opened when the program runs; nothing was linked. A driver is a
// value, and a machine without a GPU can have one too: the software driver.
//
// Prints:
//
//	driver: …
//	devices: …
//	0: … (GPU-…)
//	compute capability …, … MiB of memory
//	virtual memory management: true, as file descriptors: true
//	another device: no device 99 here; visible are:
//	…
package main

import (
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/soft"
	"github.com/gpufd/gpufd/cu/sys"
)

func main() {
	drv, err := open()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("driver:", drv)
	fmt.Println("devices:", len(drv.Devices()))
	dev, err := drv.Device(0) // or drv.FindDevice("GPU-8f7d…"), which is the same in every process
	if err != nil {
		log.Fatal(err)
	}
	if err := describe(dev); err != nil {
		log.Fatal(err)
	}
	_, err = drv.Device(99)
	fmt.Println("another device:", err) // errors say what there is, not only what there is not
}

// open takes libcuda, and the software driver where there is no GPU, unless
// GPUFD_DRIVER says which. A driver that is there and broken stays an error.
func open() (*cu.Driver, error) {
	if os.Getenv("GPUFD_DRIVER") == "soft" {
		return cu.Open(cu.WithResolver(soft.Resolver))
	}
	drv, err := cu.Open()
	var absent *sys.LibraryError
	none := errors.As(err, &absent) && !absent.Found || errors.Is(err, cu.ErrNoDevice)
	if none && os.Getenv("GPUFD_DRIVER") != "cuda" {
		return cu.Open(cu.WithResolver(soft.Resolver))
	}
	return drv, err
}

func describe(dev *cu.Device) error {
	fmt.Println(dev)
	major, minor, err := dev.ComputeCapability()
	if err != nil {
		return err
	}
	memory, err := dev.TotalMemory()
	if err != nil {
		return err
	}
	fmt.Printf("compute capability %d.%d, %d MiB of memory\n", major, minor, memory>>20)
	vmm, err := dev.SupportsVMM()
	if err != nil {
		return err
	}
	fd, err := dev.SupportsFD() // any other property: dev.Attribute(cu.AttributeMultiprocessorCount)
	fmt.Printf("virtual memory management: %v, as file descriptors: %v\n", vmm, fd)
	return err
}
