// Command gpufd is this project in the handoff benchmark: a producer and a
// consumer, each a process, which use the public API only. It speaks the
// protocol of package rival.
package main

import (
	"context"
	"flag"
	"io"
	"os"
	"time"

	"github.com/gpufd/gpufd/bench/internal/program"
	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
)

// patience bounds every step of a handoff.
const patience = time.Minute

type options struct {
	driver   string
	consumer string // socket to attach at
}

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run is the program; it returns the exit code.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	var o options
	flags := flag.NewFlagSet("gpufd", flag.ContinueOnError)
	flags.StringVar(&o.driver, "driver", "cuda", "`cuda|soft`")
	flags.StringVar(&o.consumer, "consumer", "", "be a consumer of the producer that listens at `path`")
	refused := cli.ExitOK
	code := program.Run(flags, args, stdout, stderr, func() error {
		h, err := o.open()
		if err != nil { // who started it is told why, and nobody else
			refused = cli.ExitCode(err)
			return rival.Refuse(stdout, err)
		}
		return h.serve(stdin, stdout)
	})
	return max(code, refused)
}

// A half is a producer or a consumer. serve answers until stdin ends, and lets
// go of everything.
type half interface {
	serve(stdin io.Reader, stdout io.Writer) error
}

func (o options) open() (half, error) {
	if o.consumer == "" {
		return newProducer(o)
	}
	return newConsumer(o)
}

// device opens the driver, its first device and the device's primary context.
func (o options) device() (*cu.Device, *cu.Context, error) {
	drv, err := cli.OpenDriver(o.driver)
	if err != nil {
		return nil, nil, err
	}
	dev, err := drv.Device(0)
	if err != nil {
		return nil, nil, err
	}
	ctx, err := dev.PrimaryContext()
	return dev, ctx, err
}

// bounded is a context for one step.
func bounded() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), patience)
}
