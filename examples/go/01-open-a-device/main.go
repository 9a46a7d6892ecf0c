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
//	another device: cu: no device 99 here; visible devices:
//	…
package main

import (
	"fmt"
	"log"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/soft"
)

func main() {
	drv, err := cu.Open(cu.WithFallback(soft.Resolver)) // the software driver only where there is no GPU
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
