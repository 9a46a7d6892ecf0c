package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/kernels"
)

// A launcher is one run of the command.
type launcher struct {
	app *cli.App

	device               string
	ptx, module, builtin string // one of them
	kernel               string
	grid, block          dim
	shared, moves        cli.Size
	repeat               int
	list                 bool

	args    []*argument
	dev     *cu.Device
	ctx     *cu.Context
	stream  *cu.Stream
	code    *cu.Module
	running bool // the kernel is, or may be
}

func newLauncher(stdout io.Writer) *launcher {
	l := &launcher{grid: dim{1, 1, 1}, block: dim{1, 1, 1}}
	l.app = cli.New("launch", "runs a kernel on buffers and numbers from the command line.", stdout)
	l.app.Check, l.app.Args = l.check, "ARG…\n"+argumentHelp
	f := l.app.Flags
	f.StringVar(&l.device, "device", "0", "device to use, by `N|UUID`")
	f.StringVar(&l.ptx, "ptx", "", "take the kernel from this `file` of PTX; what the compiler says of it is shown")
	f.StringVar(&l.module, "module", "", "take the kernel from this `file` of PTX, a cubin or a fatbin, which the driver reads itself")
	f.StringVar(&l.builtin, "builtin", "", "take the kernel from the module `pattern|memory|vector` that comes with this program")
	f.StringVar(&l.kernel, "kernel", "", "`name` of the kernel, as the code spells it")
	f.Var(&l.grid, "grid", "how many blocks, `X[,Y[,Z]]`")
	f.Var(&l.block, "block", "of how many threads each, `X[,Y[,Z]]`")
	f.Var(&l.shared, "shared", "shared memory of each block in `bytes`, besides what the kernel has itself, with units KiB, MiB, GiB")
	f.IntVar(&l.repeat, "repeat", 1, "launch `N` times; what one changes the next one finds changed")
	f.Var(&l.moves, "bytes", "`bytes` that a launch reads and writes, for the bandwidth, with units KiB, MiB, GiB")
	f.BoolVar(&l.list, "list", false, "list the kernels, or the one of --kernel, and launch none")
	f.Lookup("timeout").Usage = "longest `duration` to wait for the launches to be done"
	return l
}

// check holds what flag parsing cannot.
func (l *launcher) check() (err error) {
	given := slices.DeleteFunc([]string{l.ptx, l.module, l.builtin}, func(s string) bool { return s == "" })
	switch {
	case len(given) != 1:
		return cli.Usagef("want one of --ptx, --module and --builtin, and not %d; see launch -h", len(given))
	case l.builtin != "" && findBuiltin(l.builtin) == nil:
		return cli.Usagef("--builtin %q: want %s", l.builtin, builtinNames())
	case l.repeat < 1:
		return cli.Usagef("--repeat %d: want 1 or more", l.repeat)
	case l.list && l.app.Flags.NArg() > 0:
		return cli.Usagef("unexpected argument %q: --list launches nothing", l.app.Flags.Arg(0))
	case !l.list && l.kernel == "":
		return cli.Usagef("want the name of a kernel with --kernel; --list shows those there are")
	}
	l.args, err = parseArguments(l.app.Flags.Args())
	return err
}

func (l *launcher) run(ctx context.Context) (err error) {
	defer func() {
		if l.running {
			return // to free what it uses would wait for it; our end does that
		}
		err = errors.Join(err, l.app.Cleanup(l.closeFiles, l.ctx.Close))
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
	p, err := k.fn.Prepare(cu.LaunchConfig{Grid: cu.Dim3(l.grid), Block: cu.Dim3(l.block), Shared: uint32(l.shared)}, given...)
	if err != nil {
		return err
	}
	l.app.Result["kernel"], l.app.Result["launches"] = l.kernel, l.repeat
	l.app.Say("launching", cli.Fields{"kernel": l.kernel, "grid": l.grid.all(), "block": l.block.all(), "shared": uint64(l.shared)},
		"Launching %s: grid %s, block %s", l.kernel, &l.grid, &l.block)
	took, err := l.runAll(ctx, p)
	if err != nil {
		return err
	}
	l.report(took)
	return l.app.Timed("write", func() error { return l.writeFiles(ctx) })
}

// runAll launches as often as asked for, and returns how long that took on the
// device.
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
	l.running = true
	err = l.app.Timed("launch", func() error { return l.await(ctx, p, begin, end) })
	l.running = err != nil && !errors.Is(err, cu.ErrContextLost)
	switch {
	case errors.Is(context.Cause(ctx), cli.ErrInterrupted):
		return 0, cli.ErrInterrupted
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
		err = fmt.Errorf("%w\n--driver soft runs PTX, too, and says in which line and thread it dies", err)
	}
	return err
}

// await queues the launches between two events and waits for the second. The
// driver keeps back who queues too much, for as long as a kernel runs, and so
// that is done beside.
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

// report says how long a launch took, and how much it moved in that time.
func (l *launcher) report(took time.Duration) {
	seconds := took.Seconds() / float64(l.repeat)
	line := fmt.Sprintf("Kernel %s took %.3f µs", l.kernel, seconds*1e6)
	if l.repeat > 1 {
		line += fmt.Sprintf(" a launch, of %d", l.repeat)
	}
	fields := cli.Fields{"us": seconds * 1e6}
	if l.moves != 0 && seconds > 0 {
		rate := float64(l.moves) / seconds
		line += fmt.Sprintf(": %.3f GB/s", rate/1e9)
		fields["bytes_per_second"] = rate
	}
	for name, v := range fields {
		l.app.Result[name] = v
	}
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

func builtinNames() string {
	var names []string
	for _, b := range kernels.Builtins() {
		names = append(names, b.Name)
	}
	return listed(names, "or")
}
