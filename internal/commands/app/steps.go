package app

import (
	"os"
	"sync"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/vmm"
)

// stepOf names the steps of making, importing and exporting memory by the driver's calls.
var stepOf = map[string]string{
	"cuMemCreate": "create", "cuMemImportFromShareableHandle": "import", "cuMemAddressReserve": "reserve", "cuMemMap": "map",
	"cuMemSetAccess": "access", "cuMemExportToShareableHandle": "export", "cuIpcOpenMemHandle": "open", "cuIpcOpenMemHandle_v2": "open",
}

// A stopwatch adds up how long the driver takes for each step.
type stopwatch struct {
	mu   sync.Mutex
	took map[string]time.Duration
}

func (w *stopwatch) hook(call sys.Call, next func() sys.CUresult) sys.CUresult {
	step := stepOf[call.Symbol()]
	if step == "" {
		return next()
	}
	start := time.Now()
	r := next()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.took == nil {
		w.took = map[string]time.Duration{}
	}
	w.took[step] += time.Since(start)
	return r
}

// sayStep prints and times a step that is done.
func (a *App) sayStep(step string, f Fields, format string, args ...any) {
	a.calls.mu.Lock()
	took := a.calls.took[step]
	a.calls.mu.Unlock()
	a.Step(step, took)
	f["us"] = float64(took.Nanoseconds()) / 1e3
	a.Say(step, f, format, args...)
}

// SayCreated prints the steps in which buf was made.
func (a *App) SayCreated(buf *vmm.Buffer) {
	a.sayStep("create", Fields{"size": buf.Mapped(), "chunks": buf.Describe().Chunks}, "Created physical memory allocation")
	a.sayMapped("physical", buf)
}

// SayImported prints the steps in which buf was imported.
func (a *App) SayImported(buf *vmm.Buffer) {
	a.sayStep("import", Fields{"size": buf.Mapped(), "chunks": buf.Describe().Chunks}, "Imported allocation handle from FD")
	a.sayMapped("imported", buf)
}

func (a *App) sayMapped(memory string, buf *vmm.Buffer) {
	at, size := buf.Ptr().String(), buf.Mapped()
	words := map[cu.Access]string{cu.ReadOnly: "read-only", cu.ReadWrite: "read/write"}
	a.sayStep("reserve", Fields{"address": at, "size": size}, "Reserved virtual address space at %s", at)
	a.sayStep("map", Fields{"address": at, "size": size, "chunks": buf.Describe().Chunks}, "Mapped %s memory to virtual address", memory)
	a.sayStep("access", Fields{"address": at, "size": size}, "Set %s access permissions", words[buf.Access()])
}

// SayExported prints that memory of size bytes was exported as files.
func (a *App) SayExported(files []*os.File, size uint64) {
	a.sayStep("export", Fields{"size": size, "chunks": len(files), "fd": files[0].Fd()}, "Exported allocation as FD: %s", FDs(files))
}

// SayOpened prints that legacy memory of size bytes was opened.
func (a *App) SayOpened(at cu.DevicePtr, size uint64) {
	a.sayStep("open", Fields{"address": at.String(), "size": size}, "Opened IPC handle at %s", at)
}
