package vmm

import (
	"fmt"
	"time"

	"github.com/gpufd/gpufd/cu"
)

// An Op is what a [Step] did.
type Op uint8

// The steps of making, importing, growing and exporting memory.
const (
	OpWait    Op = iota + 1 // waited until others freed memory
	OpCreate                // created physical memory
	OpImport                // imported physical memory
	OpReserve               // reserved address space
	OpMap                   // mapped physical memory there
	OpAccess                // gave the device access
	OpExport                // exported physical memory
	OpOpen                  // opened legacy memory; package share does that
)

var opNames = [...]string{
	OpWait: "wait", OpCreate: "create", OpImport: "import", OpReserve: "reserve",
	OpMap: "map", OpAccess: "access", OpExport: "export", OpOpen: "open",
}

// String gives "wait", "create", "import", "reserve", "map", "access", "export" or
// "open".
func (o Op) String() string {
	if o == 0 || int(o) >= len(opNames) {
		return fmt.Sprintf("Op(%d)", uint8(o))
	}
	return opNames[o]
}

// A Step is a finished part of making a buffer.
type Step struct {
	Op     Op
	Ptr    cu.DevicePtr  // address concerned, or 0
	Size   uint64        // bytes concerned
	Chunks int           // chunks concerned, or 0
	Access cu.Access     // for OpAccess
	FD     int           // for OpExport: the first descriptor that was made
	Took   time.Duration // how long it took
}

// A teller reports the steps of one operation.
type teller struct {
	f    func(Step) // or nil
	hold bool       // keep the steps until release is called
	held []Step
}

// begin returns when a step begins.
func (t *teller) begin() (start time.Time) {
	if t.f != nil {
		start = time.Now()
	}
	return start
}

// done reports a step that has succeeded.
func (t *teller) done(start time.Time, s Step) {
	if t.f == nil {
		return
	}
	s.Took = time.Since(start)
	if t.hold {
		t.held = append(t.held, s)
		return
	}
	t.f(s)
}

// release reports the steps that were held. The caller must hold no lock that f
// could want.
func (t *teller) release() {
	for _, s := range t.held {
		t.f(s)
	}
}
