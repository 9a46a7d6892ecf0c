package app

import (
	"errors"
	"fmt"
	"os"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/vmm"
)

// Device finds the device that the user named, and prints that it is used.
func (a *App) Device(name string) (*cu.Device, error) {
	dev, err := a.Driver.FindDevice(name)
	if err != nil {
		return nil, err
	}
	a.UseDevice(dev)
	return dev, nil
}

// UseDevice prints that dev is used.
func (a *App) UseDevice(dev *cu.Device) {
	a.Result["device"], a.Result["uuid"] = dev.Ordinal(), dev.UUID().String()
	a.Say("device", Fields{"device": dev.Ordinal(), "name": dev.Name(), "uuid": dev.UUID().String()},
		"Using CUDA device %d: %s", dev.Ordinal(), dev.Name())
}

// andMore says how many more descriptors there are, one per chunk.
func andMore(chunks int) string {
	if chunks <= 1 {
		return ""
	}
	return fmt.Sprintf(" (and %d more, one per chunk)", chunks-1)
}

// FDs returns the descriptors of an offer, for people.
func FDs(files []*os.File) string { return fmt.Sprintf("%d%s", files[0].Fd(), andMore(len(files))) }

// Steps prints and times the steps of making, importing and exporting a buffer of "physical" or
// "imported" memory, each with the transcript's line for it.
func (a *App) Steps(memory string) func(vmm.Step) {
	return func(s vmm.Step) {
		a.Step(s.Op.String(), s.Took)
		line, known := map[vmm.Op]string{
			vmm.OpCreate:  "Created physical memory allocation",
			vmm.OpImport:  "Imported allocation handle from FD",
			vmm.OpReserve: "Reserved virtual address space at " + s.Ptr.String(),
			vmm.OpMap:     "Mapped " + memory + " memory to virtual address",
			vmm.OpAccess:  "Set " + map[cu.Access]string{cu.ReadOnly: "read-only", cu.ReadWrite: "read/write"}[s.Access] + " access permissions",
			vmm.OpOpen:    "Opened IPC handle at " + s.Ptr.String(),
			vmm.OpExport:  fmt.Sprintf("Exported allocation as FD: %d%s", s.FD, andMore(s.Chunks)),
		}[s.Op]
		if known {
			a.Say(s.Op.String(), stepFields(s), "%s", line)
		}
	}
}

func stepFields(s vmm.Step) Fields {
	f := Fields{"size": s.Size, "us": float64(s.Took.Nanoseconds()) / 1e3}
	if s.Ptr != 0 {
		f["address"] = s.Ptr.String()
	}
	if s.Chunks != 0 {
		f["chunks"] = s.Chunks
	}
	if s.FD != 0 {
		f["fd"] = s.FD
	}
	return f
}

// Cleanup prints err, the failure of the work or nil, and then calls all closers. It prints
// that it is done if none failed, and returns err joined with their errors.
func (a *App) Cleanup(err error, closers ...func() error) error {
	err = a.tellEarly(err)
	var errs []error
	for _, c := range closers {
		errs = append(errs, c())
	}
	a.SayDurations()
	failed := errors.Join(errs...)
	if failed != nil {
		return errors.Join(err, failed)
	}
	a.Say("cleanup", nil, "Cleanup complete")
	return err
}

// tellEarly prints an error after the lines before it, and returns it marked as printed. It
// leaves a closed output to the end, which knows whether that is an error.
func (a *App) tellEarly(err error) error {
	if err == nil || errors.Is(err, errNoReader) || a.stderr == nil {
		return err
	}
	told := &toldError{advised(err)}
	a.Settle()
	a.lines.drain(stderrLimit, a.ending.again)
	a.tell(a.stderr, told)
	return told
}

// Access returns the access that ro or rw stands for.
func Access(word string) cu.Access {
	if word == "rw" {
		return cu.ReadWrite
	}
	return cu.ReadOnly
}
