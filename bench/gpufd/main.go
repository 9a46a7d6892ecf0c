// Command gpufd is this project in the handoff benchmark: a producer and as
// many consumers as are asked for, each a process, which use the public API
// only. It speaks the protocol of package rival.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/soft"
)

// patience bounds every step of a handoff.
const patience = time.Minute

type options struct {
	driver   string
	consumer string // socket to attach at
	context  bool
	plain    bool
}

func main() {
	var o options
	flag.StringVar(&o.driver, "driver", "cuda", "`cuda|soft`")
	flag.StringVar(&o.consumer, "consumer", "", "be a consumer of the producer that listens at `path`")
	flag.BoolVar(&o.context, "context", true, "take a context in consumers, which reading the data needs and attaching does not")
	flag.BoolVar(&o.plain, "plain", false, "do nothing beforehand but to export: wait for the device in the offer, reserve after it came")
	flag.Parse()
	run := runProducer
	if o.consumer != "" {
		run = runConsumer
	}
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "gpufd:", err)
		os.Exit(1)
	}
}

// open opens the driver and its first device.
func (o options) open() (*cu.Device, error) {
	var opts []cu.Option
	if o.driver == "soft" {
		opts = append(opts, cu.WithResolver(soft.Resolver))
	}
	drv, err := cu.Open(opts...)
	if err != nil {
		return nil, err
	}
	return drv.Device(0)
}

// bounded is a context for one step.
func bounded() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), patience)
}

// interval is a step from one time of the common clock to another.
func interval(side, name string, from, to int64) rival.Step {
	return rival.Step{Side: side, Name: name, At: from, NS: to - from}
}
