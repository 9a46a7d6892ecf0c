// Package launch is the command launch.
package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/kernels"
)

// A launcher is one run of the command.
type launcher struct {
	app *app.App

	device               string
	ptx, module, builtin string // one of them is set
	kernel               string
	grid, block          dim
	shared               room
	moves                cli.Size
	repeat               int
	list                 bool

	args    []*argument
	dev     *cu.Device
	ctx     *cu.Context
	stream  *cu.Stream
	code    *cu.Module
	running bool // the kernel is running, or may be
}

// New returns a run of the command.
func New(stdout io.Writer) *app.App {
	l := &launcher{grid: dim{1, 1, 1}, block: dim{1, 1, 1}}
	l.app = app.New("launch", "runs a kernel on buffers and numbers from the command line.", stdout)
	l.app.Body, l.app.Check, l.app.Early = l.run, l.check, l.findSource
	c := l.app.Command
	c.Use, c.Long, c.Args, c.ValidArgsFunction = "launch [flags] ARG…", c.Long+"\n"+argumentHelp, cobra.ArbitraryArgs, completeArgument
	f := l.app.Flags
	f.StringVar(&l.device, "device", "0", "device to use, by `N|UUID`")
	f.StringVar(&l.ptx, "ptx", "", "take the kernel from this `file` of PTX, and show the compiler's messages")
	f.StringVar(&l.module, "module", "", "take the kernel from this `file`, which the driver reads itself: PTX, a cubin or a fatbin")
	f.StringVar(&l.builtin, "builtin", "", "take the kernel from this program's own module of this `name`: "+app.Listed(builtinNames(), "or"))
	f.StringVar(&l.kernel, "kernel", "", "`name` of the kernel, as the code spells it")
	f.Var(&l.grid, "grid", "number of blocks, `X[,Y[,Z]]`, decimal or 0x, or 1K for 1024 and 1M for 1048576")
	f.Var(&l.block, "block", "number of threads in each block, `X[,Y[,Z]]`")
	f.Var(&l.shared, "shared", "dynamic shared memory of each block in `bytes`, with units KiB, MiB, GiB")
	f.IntVar(&l.repeat, "repeat", 1, "launch `N` times, each on the buffers as the last one left them")
	f.Var(&l.moves, "bytes", "`bytes` that one launch reads and writes, to report the bandwidth, with units KiB, MiB, GiB")
	f.BoolVar(&l.list, "list", false, "list the kernels, or only the one of --kernel, and launch nothing; without a source, list all that come with this program")
	f.Lookup("timeout").Usage = "wait no longer than this `duration` for the launches to end"
	_ = c.RegisterFlagCompletionFunc("builtin", cobra.FixedCompletions(builtinNames(), cobra.ShellCompDirectiveNoFileComp))
	_ = c.RegisterFlagCompletionFunc("kernel", cobra.FixedCompletions(builtinKernels(), cobra.ShellCompDirectiveNoFileComp))
	return l.app
}

// check checks what flag parsing cannot.
func (l *launcher) check() (err error) {
	behind := flagBehind(l.app.Flags.Args())
	given := slices.DeleteFunc([]string{l.ptx, l.module, l.builtin}, func(s string) bool { return s == "" })
	switch {
	case behind != "":
		return cli.Usagef("%s: put flags before the arguments of the kernel", behind)
	case len(given) != 1 && !(len(given) == 0 && l.list):
		return cli.Usagef("want one of --ptx, --module and --builtin: %s given; launch --list shows what comes with this program", app.Were(len(given)))
	case l.repeat < 1:
		return cli.Usagef("--repeat %d: want 1 or more", l.repeat)
	case l.list && l.app.Flags.NArg() > 0:
		return cli.Usagef("unexpected argument %q: --list launches nothing", l.app.Flags.Arg(0))
	case !l.list && l.kernel == "":
		return cli.Usagef("want the name of a kernel with --kernel; --list shows the names")
	}
	l.app.Quiet = l.list
	l.args, err = parseArguments(l.app.Flags.Args())
	return err
}

// findSource checks that the source of the kernel is there. A wrong name is a failure and
// not wrong usage, as for a kernel or a device: the command line alone does not show it.
func (l *launcher) findSource() error {
	if l.builtin != "" && findBuiltin(l.builtin) == nil {
		return fmt.Errorf("no module %q comes with this program: --builtin takes %s", l.builtin, app.Listed(builtinNames(), "or"))
	}
	switch {
	case l.ptx != "":
		return cli.FindFile("ptx", l.ptx)
	case l.module != "":
		return cli.FindFile("module", l.module)
	}
	return nil
}

func (l *launcher) run(ctx context.Context) (err error) {
	defer func() {
		if l.running {
			return // freeing its memory would wait for it; the end of the process frees it
		}
		err = l.app.Cleanup(err, l.closeFiles, l.ctx.Close)
	}()
	if err := l.openFiles(); err != nil {
		return err
	}
	if l.dev, err = l.app.Device(l.device); err != nil {
		return err
	}
	if err := l.app.Timed("context", func() (err error) { l.ctx, err = l.dev.PrimaryContext(); return err }); err != nil {
		return err
	}
	if l.list && l.source() == "" {
		return l.listBuiltins()
	}
	if err := l.app.Timed("load", l.load); err != nil {
		return err
	}
	if l.list {
		return l.listKernels()
	}
	k, err := l.find()
	if err != nil {
		return err
	}
	return l.launch(ctx, k)
}

// launch checks everything, launches and writes what came out.
func (l *launcher) launch(ctx context.Context, k *kernel) error {
	if err := k.fits(l.args); err != nil {
		return err
	}
	if err := l.withinLimits(k); err != nil {
		return err
	}
	if err := l.app.Timed("buffers", func() error { return l.makeBuffers(ctx) }); err != nil {
		return err
	}
	given := make([]any, len(l.args))
	for i, a := range l.args {
		given[i] = a.given()
	}
	p, err := k.fn.Prepare(cu.LaunchConfig{Grid: l.grid.given(), Block: l.block.given(), Shared: uint32(l.shared)}, given...)
	if err != nil {
		return err
	}
	l.app.Result["kernel"], l.app.Result["launches"] = l.kernel, l.repeat
	l.app.Say("launching", app.Fields{"kernel": l.kernel, "grid": l.grid, "block": l.block, "shared": uint64(l.shared)},
		"Launching %s: grid %s, block %s", l.kernel, &l.grid, &l.block)
	took, err := l.runAll(ctx, p)
	if err != nil {
		return err
	}
	l.report(took)
	return l.app.Timed("write", func() error { return l.writeFiles(ctx) })
}

// runAll launches --repeat times, and returns how long that took on the device.
func (l *launcher) runAll(ctx context.Context, p *cu.Launch) (time.Duration, error) {
	begin, err := l.ctx.NewEvent(0)
	if err != nil {
		return 0, err
	}
	end, err := l.ctx.NewEvent(0)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, l.app.Timeout)
	defer cancel()
	defer l.app.Busy(func() string { return fmt.Sprintf("kernel %s is running, for %s at most", l.kernel, l.app.Timeout) })()
	l.running = true
	err = l.app.Timed("launch", func() error { return l.await(ctx, p, begin, end) })
	l.running = err != nil && !errors.Is(err, cu.ErrContextLost)
	switch {
	case errors.Is(context.Cause(ctx), app.ErrInterrupted):
		return 0, context.Cause(ctx)
	case errors.Is(err, context.DeadlineExceeded):
		return 0, fmt.Errorf("kernel %s is not done after %s; wait longer with --timeout: %w", l.kernel, l.app.Timeout, context.DeadlineExceeded)
	case err != nil:
		return 0, l.blame(fmt.Errorf("kernel %s failed: %w", l.kernel, err))
	}
	return end.Elapsed(begin)
}

// blame adds what to do to the error of a kernel that died.
func (l *launcher) blame(err error) error {
	if errors.Is(err, cu.ErrIllegalAddress) || errors.Is(err, cu.ErrMisalignedAddress) {
		err = fmt.Errorf("%w\ngive the kernel buffers for its addresses, as large as its other arguments say", err)
	}
	if errors.Is(err, cu.ErrContextLost) && l.app.Driver.Kind() == cu.CUDA {
		err = fmt.Errorf("%w\n--driver soft runs PTX, too, and names the line and thread that fail", err)
	}
	return err
}

// await queues the launches between two events and waits for the second. A goroutine
// queues them, because the driver blocks a call that queues too much while a kernel runs.
func (l *launcher) await(ctx context.Context, p *cu.Launch, begin, end *cu.Event) error {
	queued := make(chan error, 1)
	go func() { queued <- l.queue(ctx, p, begin, end) }()
	select {
	case err := <-queued:
		if err != nil {
			return err
		}
		return end.Synchronize(ctx)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (l *launcher) queue(ctx context.Context, p *cu.Launch, begin, end *cu.Event) error {
	if err := begin.Record(l.stream); err != nil {
		return err
	}
	for range l.repeat {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := p.Run(l.stream); err != nil {
			return err
		}
	}
	return end.Record(l.stream)
}

// report prints how long a launch took, and its bandwidth.
func (l *launcher) report(took time.Duration) {
	seconds := took.Seconds() / float64(l.repeat)
	line := fmt.Sprintf("Kernel %s took %s", l.kernel, app.Brief(took/time.Duration(l.repeat)))
	if l.repeat > 1 {
		line += fmt.Sprintf(" a launch, of %d", l.repeat)
	}
	fields := app.Fields{"us": seconds * 1e6}
	if l.moves != 0 && seconds > 0 {
		rate := float64(l.moves) / seconds
		line += fmt.Sprintf(": %.3f GB/s", rate/1e9)
		fields["bytes_per_second"] = rate
	}
	maps.Copy(l.app.Result, fields)
	l.app.Say("launched", fields, "%s", line)
}

// findBuiltin returns the module of that name, or nil.
func findBuiltin(name string) *kernels.Builtin {
	for _, b := range kernels.Builtins() {
		if b.Name == name {
			return &b
		}
	}
	return nil
}

func builtinNames() (names []string) {
	for _, b := range kernels.Builtins() {
		names = append(names, b.Name)
	}
	return names
}

// builtinKernels returns the kernels of all modules that come with the program.
func builtinKernels() (names []string) {
	for _, b := range kernels.Builtins() {
		for _, k := range b.Kernels {
			names = append(names, k.Name)
		}
	}
	return names
}
