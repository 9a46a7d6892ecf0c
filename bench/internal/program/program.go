// Package program is what the benchmark programs have in common: how they treat
// their flags, end, and open a device.
package program

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/gpufd/gpufd/cu"
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

// Device opens the driver, a device and the device's primary context.
func Device(driver string, ordinal int) (*cu.Device, *cu.Context, error) {
	drv, err := cli.OpenDriver(driver)
	if err != nil {
		return nil, nil, err
	}
	dev, err := drv.Device(ordinal)
	if err != nil {
		return nil, nil, err
	}
	ctx, err := dev.PrimaryContext()
	return dev, ctx, err
}
