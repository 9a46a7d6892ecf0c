// Package program is what the benchmark programs have in common: how they treat
// their flags, end, and open a driver.
package program

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/soft"
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/internal/cli"
)

// Run parses args, which are flags only, and runs body. It returns the exit
// code: 2 for a mistake in the flags, 3 where there is no driver, and 1 for other
// failures, each with one line on stderr; -h explains the flags on stdout.
func Run(flags *flag.FlagSet, args []string, stdout, stderr io.Writer, body func() error) int {
	err := parse(flags, args, stdout)
	if errors.Is(err, flag.ErrHelp) {
		return cli.ExitOK
	}
	if err == nil {
		err = body()
	}
	if err != nil {
		fmt.Fprintf(stderr, "%s: %s\n", flags.Name(), OneLine(err))
	}
	return cli.ExitCode(err)
}

func parse(flags *flag.FlagSet, args []string, stdout io.Writer) error {
	flags.SetOutput(io.Discard)
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		flags.SetOutput(stdout)
		flags.Usage()
		return err
	case err != nil:
		return cli.Usagef("%w; -h explains", err)
	case flags.NArg() > 0:
		return cli.Usagef("unexpected argument %q; -h explains", flags.Arg(0))
	}
	return nil
}

// OneLine is the text of err without line breaks.
func OneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// Open opens the driver of that name, cuda or soft.
func Open(driver string) (*cu.Driver, error) {
	opts := []cu.Option{Steps()}
	switch driver {
	case cu.CUDA.String():
	case cu.Soft.String():
		opts = append(opts, cu.WithResolver(soft.Resolver))
	default:
		return nil, cli.Usagef("-driver %q: want cuda or soft", driver)
	}
	drv, err := cu.Open(opts...)
	if err != nil {
		return nil, cli.Machinef("%w", err)
	}
	return drv, nil
}

// stepOf names the steps of making, importing and exporting memory by the driver's calls.
var stepOf = map[string]string{
	"cuMemCreate": "create", "cuMemImportFromShareableHandle": "import", "cuMemAddressReserve": "reserve", "cuMemMap": "map",
	"cuMemSetAccess": "access", "cuMemExportToShareableHandle": "export", "cuIpcOpenMemHandle_v2": "open",
}

var onStep atomic.Pointer[func(step string, took time.Duration)]

// OnStep calls f after each of the driver's steps from now on, on the goroutine that makes it.
func OnStep(f func(step string, took time.Duration)) { onStep.Store(&f) }

// Steps is the option of a driver with which OnStep works.
func Steps() cu.Option { return cu.WithHook(hook) }

func hook(call sys.Call, next func() sys.CUresult) sys.CUresult {
	f, step := onStep.Load(), stepOf[call.Symbol()]
	if f == nil || step == "" {
		return next()
	}
	begin := time.Now()
	r := next()
	(*f)(step, time.Since(begin))
	return r
}
