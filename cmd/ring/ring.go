package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// maxProcs bounds the processes, all of whose chunks travel in one record.
const maxProcs = sock.MaxFDs

// A ring is one run of the command: the parent of the members.
type ring struct {
	app *cli.App

	procs, steps int // 0: one per device, as many as processes
	size         cli.Size
	place        placeFlag
	salt         saltFlag
	compat       bool
	module       string
	verbose      bool

	devices []*cu.Device // that take part
	owners  []*cu.Device // of the chunks
	values  []byte       // of the processes
	chunk   uint64       // size, rounded up
	chunks  []*vmm.Allocation
}

func newRing(stdout io.Writer) *ring {
	r := &ring{size: 4 << 20, place: placeSpread}
	r.app = cli.New("ring", "has several processes fill one another's device memory in turns, and check it.", stdout)
	r.app.Check = r.check
	f := r.app.Flags
	f.IntVar(&r.procs, "procs", 0, "how many processes, `N` of 1 to 64; without it, one for each GPU that can take part")
	f.IntVar(&r.steps, "steps", 0, "fill `N` times; without it, as often as there are processes")
	f.Var(&r.size, "size", "`bytes` of each process' chunk, with units KiB, MiB, GiB")
	f.Var(&r.place, "place", "where the chunks are: all on the `first|spread` over the processes' GPUs")
	f.Var(&r.salt, "salt", "a 32-bit `number` that the values depend on; without it, one that is different each time")
	f.BoolVar(&r.compat, "compat", false, "fill with the values of NVIDIA's sample: each process' number, of which the first is what new memory holds anyway")
	f.StringVar(&r.module, "module", "", "load the kernel "+kernelName+" (address, u64 bytes, u8 value) from this `file` of PTX, a cubin or a fatbin (cuModuleLoad), as kernels/memory.ptx")
	f.BoolVar(&r.verbose, "v", false, "say of each step which process has filled which chunk")
	f.Lookup("timeout").Usage = "longest `duration` to wait for any process to do its next step"
	return r
}

// check holds what flag parsing cannot.
func (r *ring) check() error {
	given := map[string]bool{}
	r.app.Flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	switch {
	case given["procs"] && (r.procs < 1 || r.procs > maxProcs):
		return cli.Usagef("--procs %d: want 1 to %d", r.procs, maxProcs)
	case given["steps"] && r.steps < 1:
		return cli.Usagef("--steps %d: want 1 or more", r.steps)
	case given["module"] && r.module == "":
		return cli.Usagef("--module: want the name of a file")
	case r.compat && r.salt.given:
		return cli.Usagef("--salt %s: the values of --compat have no salt", &r.salt)
	}
	return nil
}

func (r *ring) run(ctx context.Context) (err error) {
	r.app.Say("start", cli.Fields{"program": "ring"}, "=== CUDA VMM Ring ===")
	defer func() { err = errors.Join(err, r.app.Cleanup(r.closeChunks)) }()
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
	c := &crew{app: r.app, verbose: r.verbose, events: make(chan event)}
	defer r.app.OnAbort(c.kill)()
	defer r.app.Waiting()() // for the members, each of whom has --timeout
	return c.end(r.turn(ctx, c))
}

// turn has the members do all that they are there for, and says how far they are.
func (r *ring) turn(ctx context.Context, c *crew) error {
	if err := r.app.Timed("start", func() error { return r.start(ctx, c) }); err != nil {
		return err
	}
	r.app.Say("mapped", cli.Fields{"processes": r.procs, "chunks": r.procs, "bytes": r.chunk},
		"Each of %s has mapped all chunks", cli.Count(r.procs, "process"))
	if err := r.app.Timed("fill", func() error { return r.fill(ctx, c) }); err != nil {
		return err
	}
	r.app.Say("filled", cli.Fields{"steps": r.steps}, "Filled all chunks, %s", times(r.steps))
	if err := r.app.Timed("check", func() error { return c.all(ctx, message{Kind: checkChunk}, ended) }); err != nil {
		return err
	}
	r.app.Say("verified", cli.Fields{"processes": r.procs, "bytes": uint64(r.size)},
		"Data verification PASSED (%s with %d bytes each)", cli.Count(r.procs, "chunk"), uint64(r.size))
	return nil
}

// fill has all members do all steps. Nobody begins one before everybody has done
// the one before.
func (r *ring) fill(ctx context.Context, c *crew) error {
	for i := range r.steps {
		r.app.Progress("filling", uint64(i), uint64(r.steps))
		if err := c.all(ctx, message{Kind: fillStep, Step: i}, filled); err != nil {
			return err
		}
	}
	return nil
}

// plan settles how many processes and steps there are, who fills with what, and on
// which devices the chunks are.
func (r *ring) plan() {
	if r.procs == 0 {
		r.procs = min(len(r.devices), maxProcs)
	}
	if r.steps == 0 {
		r.steps = r.procs
	}
	if !r.salt.given {
		r.salt.value = rand.Uint32()
	}
	r.values = values(r.procs, r.salt.value, r.compat)
	for id := range r.procs {
		owner := r.devices[0]
		if r.place == placeSpread {
			owner = r.deviceOf(id)
		}
		r.owners = append(r.owners, owner)
	}
	r.sayPlan()
}

func (r *ring) sayPlan() {
	fields := cli.Fields{"processes": r.procs, "devices": len(r.devices), "place": r.place.String(), "steps": r.steps, "compat": r.compat}
	words := "values as in NVIDIA's sample"
	if !r.compat {
		fields["salt"], words = r.salt.value, fmt.Sprintf("salt %d", r.salt.value)
	}
	maps.Copy(r.app.Result, fields)
	r.app.Say("ring", fields, "%s on %s, %s, %s", cli.Count(r.procs, "process"), cli.Count(len(r.devices), "device"), cli.Count(r.steps, "step"), words)
}

// deviceOf is the device that a process works on.
func (r *ring) deviceOf(id int) *cu.Device { return r.devices[id%len(r.devices)] }

// announceSize rounds the size of a chunk up, and refuses what the devices could
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
			return fmt.Errorf("--size %s: %s on device %s, which has %s, is too much", r.size, cli.Count(n, "such chunk"), dev, cli.Human(total))
		}
	}
	r.app.Result["size"], r.app.Result["aligned"] = uint64(r.size), r.chunk
	r.app.Say("size", cli.Fields{"size": uint64(r.size), "aligned": r.chunk, "granularity": granularity},
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
			r.app.Say("created", cli.Fields{"device": dev.Ordinal(), "chunks": n, "bytes": r.chunk}, "Created %s on device %d", cli.Count(n, "chunk"), dev.Ordinal())
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

// start starts the members, tells each what it has to know and waits until all
// have mapped the memory.
func (r *ring) start(ctx context.Context, c *crew) (err error) {
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
