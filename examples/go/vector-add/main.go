// Command vector-add adds two vectors on a device, as NVIDIA's sample vectorAdd does: allocate,
// copy, launch, copy back, compare.
//
//	go run ./examples/go/vector-add -n 50000 -device 0
//
// It runs on a GPU, and on the software driver where there is none.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/soft"
	"github.com/gpufd/gpufd/kernels"
)

const (
	threads = 256     // of a block
	most    = 1 << 28 // elements, which is 1 GiB in each of three vectors
)

func main() {
	n := flag.Int("n", 50_000, "`elements` of a vector")
	device := flag.String("device", "0", "the device's number or UUID")
	flag.Parse()
	if *n < 1 || *n > most || flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "vector-add: want -n from 1 to %d and no arguments; got -n %d and %q\n", most, *n, flag.Args())
		os.Exit(2)
	}
	if err := run(*device, *n); err != nil {
		fmt.Fprintln(os.Stderr, "vector-add:", err)
		os.Exit(1)
	}
}

// run opens the device.
func run(device string, n int) (err error) {
	drv, err := cu.Open(cu.WithFallback(soft.Resolver))
	if err != nil {
		return err
	}
	dev, err := drv.FindDevice(device)
	if err != nil {
		return err
	}
	ctx, err := dev.PrimaryContext()
	if err != nil {
		return err
	}
	defer closing(&err, ctx)
	fmt.Printf("adding vectors of %d elements on %s, with the %s\n", n, dev, drv)
	a, b, sums := make([]float32, n), make([]float32, n), make([]float32, n)
	for i := range n {
		a[i], b[i] = rand.Float32(), rand.Float32()
	}
	if err := add(ctx, a, b, sums); err != nil {
		return err
	}
	for i, sum := range sums {
		if want := a[i] + b[i]; math.Abs(float64(sum-want)) > 1e-5 {
			return fmt.Errorf("element %d is %g; %g + %g is %g", i, sum, a[i], b[i], want)
		}
	}
	fmt.Println("every sum is right")
	return nil
}

// add adds a and b on the device of ctx and stores the sums.
func add(ctx *cu.Context, a, b, sums []float32) (err error) {
	n := len(a)
	s, err := ctx.NewStream()
	if err != nil {
		return err
	}
	defer closing(&err, s)
	var vectors [3]cu.Slice[float32] // a, b, and their sums
	for i := range vectors {
		if vectors[i], err = cu.Alloc[float32](ctx, n); err != nil {
			return err
		}
		defer closing(&err, vectors[i])
	}
	module, err := ctx.LoadModule([]byte(kernels.Vector))
	if err != nil {
		return err
	}
	defer closing(&err, module)
	kernel, err := module.Function("vector_add") // (const float *a, const float *b, float *c, u64 n)
	if err != nil {
		return err
	}
	if err := errors.Join(vectors[0].CopyFrom(s, a), vectors[1].CopyFrom(s, b)); err != nil {
		return err
	}
	cfg := cu.LaunchConfig{Grid: cu.Dim3{X: uint32((n-1)/threads + 1)}, Block: cu.Dim3{X: threads}}
	if err := kernel.Launch(s, cfg, vectors[0], vectors[1], vectors[2], uint64(n)); err != nil {
		return err
	}
	return vectors[2].CopyTo(s, sums) // behind the kernel, in its stream
}

// closing closes c and adds the error to *err.
func closing(err *error, c io.Closer) { *err = errors.Join(*err, c.Close()) }
