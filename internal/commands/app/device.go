package app

import (
	"errors"
	"fmt"
	"os"

	"github.com/gpufd/gpufd/cu"
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

// FDs returns the descriptors of an offer, one per chunk, for people.
func FDs(files []*os.File) string {
	text := fmt.Sprint(files[0].Fd())
	if more := len(files) - 1; more > 0 {
		text += fmt.Sprintf(" (and %d more, one per chunk)", more)
	}
	return text
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
