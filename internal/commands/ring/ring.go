// Package ring is the command ring.
package ring

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// maxProcs bounds the processes, all of whose chunks travel in one record.
const maxProcs = sock.MaxFDs

// A ring is one run of the command: the parent of the members.
type ring struct {
	app *app.App

	procs, steps int // 0: one process per device, as many steps as processes
	size         cli.Size
	place        string // first or spread
	salt         uint32
	compat       bool
	module       string
	verbose      bool

	devices []*cu.Device // that take part
	owners  []*cu.Device // of the chunks
	values  []byte       // of the processes
	chunk   uint64       // size, rounded up
	chunks  []*vmm.Allocation
}

// New returns a run of the command.
func New(stdout io.Writer) *app.App {
	r := &ring{size: 4 << 20}
	r.app = app.New("ring", "makes several processes fill one another's device memory in turns, and check it.", stdout)
	r.app.Body, r.app.Check = r.run, r.check
	r.app.Early = func() error { // before every process looks for it
		if r.module == "" {
			return nil
		}
		return cli.FindFile("module", r.module)
	}
	f := r.app.Flags
	f.IntVar(&r.procs, "procs", 0, "number of processes, `N` from 1 to 64; the default is one for each GPU that can take part")
	f.IntVar(&r.steps, "steps", 0, "fill `N` times; the default is the number of processes")
	f.Var(&r.size, "size", "`bytes` of each process' chunk, with units KiB, MiB, GiB")
	app.Choice(f, &r.place, "place", "spread", "place all chunks on the first GPU, or spread them over the GPUs of the processes: `first|spread`", "first", "spread")
	f.Uint32Var(&r.salt, "salt", 0, "a 32-bit `number` on which the values depend; the default differs each time")
	f.BoolVar(&r.compat, "compat", false, "fill with the values of NVIDIA's sample, the number of each process; the first number, 0, cannot be told from new memory")
	f.StringVar(&r.module, "module", "", "load the kernel "+kernelName+" (address, u64 bytes, u8 value) from this `file` of PTX, a cubin or a fatbin (cuModuleLoad); kernels/memory.ptx is an example")
	f.BoolVar(&r.verbose, "v", false, "print for each step which process has filled which chunk")
	f.Lookup("timeout").Usage = "give up after this `duration` without progress of any process, or without a sign of life of one"
	return r.app
}

// check checks what flag parsing cannot.
func (r *ring) check() error {
	given := r.app.Flags.Changed
	switch {
	case given("procs") && (r.procs < 1 || r.procs > maxProcs):
		return cli.Usagef("--procs %d: want 1 to %d", r.procs, maxProcs)
	case given("steps") && r.steps < 1:
		return cli.Usagef("--steps %d: want 1 or more", r.steps)
	case given("module") && r.module == "":
		return cli.Usagef("--module: want the name of a file")
	case r.compat && given("salt"):
		return cli.Usagef("--salt %d: --compat takes no salt; leave one of them out", r.salt)
	}
	return nil
}

func (r *ring) run(ctx context.Context) (err error) {
	r.app.Say("start", app.Fields{"program": "ring"}, "=== CUDA VMM Ring ===")
	defer func() { err = r.app.Cleanup(err, r.closeChunks) }()
	if err := r.app.Timed("devices", r.chooseDevices); err != nil {
		return err
	}
	r.plan()
	if err := r.announceSize(); err != nil {
		return err
	}
	if err := r.app.Timed("create", r.createChunks); err != nil {
		return err
	}
	c := &parent{app: r.app, verbose: r.verbose, steps: r.steps, events: make(chan event)}
	defer r.app.OnAbort(c.kill)()
	defer r.app.Waiting()() // for the members, each of which has --timeout
	return c.end(r.turn(ctx, c))
}

// turn gives the members their work, and prints how far they are.
func (r *ring) turn(ctx context.Context, c *parent) error {
	if err := r.app.Timed("start", func() error { return r.start(ctx, c) }); err != nil {
		return err
	}
	r.app.Say("mapped", app.Fields{"processes": r.procs, "chunks": r.procs, "bytes": r.chunk},
		"Each of %s has mapped all chunks", cli.Count(r.procs, "process"))
	if err := r.app.Timed("fill", func() error { return r.fill(ctx, c) }); err != nil {
		return err
	}
	r.app.Say("filled", app.Fields{"steps": r.steps}, "Filled all chunks, %s", times(r.steps))
	if err := r.app.Timed("check", func() error { return c.all(ctx, message{Kind: checkChunk}, ended) }); err != nil {
		return err
	}
	r.app.Say("verified", app.Fields{"processes": r.procs, "bytes": uint64(r.size)},
		"Data verification PASSED (%s with %d bytes each)", cli.Count(r.procs, "chunk"), uint64(r.size))
	return nil
}

// fill makes all members do all steps. None begins a step before all have done the
// one before.
func (r *ring) fill(ctx context.Context, c *parent) error {
	for i := range r.steps {
		if err := c.all(ctx, message{Kind: fillStep, Step: i}, filled); err != nil {
			return err
		}
	}
	return nil
}

// plan decides how many processes and steps there are, which values they fill with, and
// on which devices the chunks are.
func (r *ring) plan() {
	if r.procs == 0 {
		r.procs = min(len(r.devices), maxProcs)
	}
	if r.steps == 0 {
		r.steps = r.procs
	}
	if !r.app.Flags.Changed("salt") {
		r.salt = rand.Uint32()
	}
	r.values = values(r.procs, r.salt, r.compat)
	for id := range r.procs {
		owner := r.devices[0]
		if r.place == "spread" {
			owner = r.deviceOf(id)
		}
		r.owners = append(r.owners, owner)
	}
	r.sayPlan()
}

func (r *ring) sayPlan() {
	fields := app.Fields{"processes": r.procs, "devices": len(r.devices), "place": r.place, "steps": r.steps, "compat": r.compat}
	words := "values as in NVIDIA's sample"
	if !r.compat {
		fields["salt"], words = r.salt, fmt.Sprintf("salt %d", r.salt)
	}
	maps.Copy(r.app.Result, fields)
	r.app.Say("ring", fields, "%s on %s, %s, %s", cli.Count(r.procs, "process"), cli.Count(len(r.devices), "device"), cli.Count(r.steps, "step"), words)
}

// deviceOf returns the device that a process works on.
func (r *ring) deviceOf(id int) *cu.Device { return r.devices[id%len(r.devices)] }

// announceSize rounds the size of a chunk up, and refuses a size that the devices could
// never hold.
func (r *ring) announceSize() error {
	granularity := uint64(1)
	for _, dev := range r.devices {
		g, err := vmm.Granularity(dev)
		if err != nil {
			return err
		}
		granularity = max(granularity, g) // they are powers of two
	}
	var ok bool
	r.chunk, ok = vmm.AlignUp(uint64(r.size), granularity)
	for _, dev := range r.devices {
		total, err := dev.TotalMemory()
		if err != nil {
			return err
		}
		n := r.chunksOn(dev)
		if n > 0 && (!ok || r.chunk > total/uint64(n)) {
			return fmt.Errorf("--size %s: device %s would hold %s, and has only %s", r.size, dev, cli.Count(n, "such chunk"), cli.Human(total))
		}
	}
	r.app.Result["size"], r.app.Result["aligned"] = uint64(r.size), r.chunk
	r.app.Say("size", app.Fields{"size": uint64(r.size), "aligned": r.chunk, "granularity": granularity},
		"Chunk size: %d bytes, aligned size: %d bytes", uint64(r.size), r.chunk)
	return nil
}

func (r *ring) chunksOn(dev *cu.Device) (n int) {
	for _, owner := range r.owners {
		if owner == dev {
			n++
		}
	}
	return n
}

// createChunks makes the memory: a chunk for each process.
func (r *ring) createChunks() error {
	for _, owner := range r.owners {
		a, err := vmm.Create(owner, r.chunk)
		if err != nil {
			return err
		}
		r.chunks = append(r.chunks, a)
	}
	for _, dev := range r.devices {
		if n := r.chunksOn(dev); n > 0 {
			r.app.Say("created", app.Fields{"device": dev.Ordinal(), "chunks": n, "bytes": r.chunk}, "Created %s on device %d", cli.Count(n, "chunk"), dev.Ordinal())
		}
	}
	return nil
}

func (r *ring) closeChunks() error {
	var errs []error
	for _, a := range slices.Backward(r.chunks) {
		errs = append(errs, a.Close())
	}
	return errors.Join(errs...)
}

// start starts the members, tells each what it needs to know and waits until all have
// mapped the memory.
func (r *ring) start(ctx context.Context, c *parent) (err error) {
	files, err := exportAll(r.chunks)
	defer func() { err = errors.Join(err, sock.CloseFiles(files)) }()
	if err != nil {
		return err
	}
	shape := setup{Steps: r.steps, Size: uint64(r.size), Chunk: r.chunk, Values: r.values, Module: r.module}
	for _, owner := range r.owners {
		shape.Owners = append(shape.Owners, owner.UUID().String())
	}
	for id := range r.procs {
		dev := r.deviceOf(id)
		m, err := c.start(id, dev)
		if err != nil {
			return err
		}
		shape.Device = dev.UUID().String()
		if err := c.tell(ctx, m, message{Kind: begin, Setup: &shape}, files...); err != nil {
			return err
		}
	}
	return c.await(ctx, message{Kind: begin}, ready)
}
