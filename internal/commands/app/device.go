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

// Words returns the transcript's lines for the steps of making, importing and
// exporting a buffer of "physical" or "imported" memory.
func Words(memory string) func(vmm.Step) string {
	return func(s vmm.Step) string {
		switch s.Op {
		case vmm.OpCreate:
			return "Created physical memory allocation"
		case vmm.OpImport:
			return "Imported allocation handle from FD"
		case vmm.OpReserve:
			return "Reserved virtual address space at " + s.Ptr.String()
		case vmm.OpMap:
			return "Mapped " + memory + " memory to virtual address"
		case vmm.OpAccess:
			return "Set " + accessWords(s.Access) + " access permissions"
		case vmm.OpOpen:
			return "Opened IPC handle at " + s.Ptr.String()
		case vmm.OpExport:
			return fmt.Sprintf("Exported allocation as FD: %d%s", s.FD, andMore(s.Chunks))
		}
		return ""
	}
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

// Steps prints and times the steps of making or importing a buffer. words returns
// the line that says that a step is done.
func (a *App) Steps(words func(vmm.Step) string) func(vmm.Step) {
	return func(s vmm.Step) {
		a.Step(s.Op.String(), s.Took)
		if line := words(s); line != "" {
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

// accessWords returns the transcript's name of a mapping's access.
func accessWords(access cu.Access) string {
	if access == cu.ReadWrite {
		return "read/write"
	}
	return access.String()
}

// Access returns the access that ro or rw stands for.
func Access(word string) cu.Access {
	if word == "rw" {
		return cu.ReadWrite
	}
	return cu.ReadOnly
}
