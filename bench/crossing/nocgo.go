//go:build !cgo

package main

import (
	"errors"

	"github.com/ebitengine/purego"
)

const (
	reportName = "crossing-nocgo"
	baseWay    = byNumber
)

const functionsText = `Built without cgo, as programs with gpufd are, so there is no cgo to compare with, and
the functions are libc's: labs, and isdigit for cuCtxSetCurrent.
`

const cgoText = ""

// want is what a call of each form gives.
var want = [numForms]uint64{four: 1, eleven: 1}

// makeWays returns the ways that do without cgo. Without a C compiler the C
// functions are cheap ones of libc's: they ignore arguments that they do not
// know. isdigit of 1 returns 0, and labs its first argument.
func makeWays() ([]way, error) {
	libc, err := purego.Dlopen("libc.so.6", purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return nil, err
	}
	var errs []error
	find := func(symbol string) uintptr {
		addr, err := purego.Dlsym(libc, symbol)
		errs = append(errs, err)
		return addr
	}
	fs := functions{
		f4: find("labs"), f11: find("labs"),
		setCurrent: find("isdigit"),
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return waysOfGo(fs), nil
}

// bound reports whether w sets the context, which libc does not show.
func bound(w way) bool { return w.name == oursContext }
