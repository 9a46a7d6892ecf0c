// Command mem-map-ipc shares device memory between two processes, as NVIDIA's sample memMapIPC
// does. The parent starts itself as the child and offers it memory at a socket. The child maps the
// same memory and changes it with a kernel; no data crosses the socket. The parent verifies. Both
// use a GPU, or the software driver where there is none.
//
//	go run ./examples/go/mem-map-ipc -n 1000000 -device 0
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/soft"
	"github.com/gpufd/gpufd/kernels"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/vmm"
)

func main() {
	n := flag.Int("n", 1_000_000, "`elements` to share; a float32 counts up to 2^24")
	device := flag.String("device", "0", "the device's number or UUID")
	socket := flag.String("child", "", "be the child of the parent at that `socket`")
	flag.Parse()
	if *n < 1 || *n > 1<<24 || flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "mem-map-ipc: want -n from 1 to 2^24 and no arguments; got -n %d and %q\n", *n, flag.Args())
		os.Exit(2)
	}
	wait, cancel := context.WithTimeout(context.Background(), 2*time.Minute) // every wait ends
	defer cancel()
	if err := run(wait, *device, *n, *socket); err != nil {
		fmt.Fprintln(os.Stderr, "mem-map-ipc:", err)
		os.Exit(1)
	}
}

// run opens the device, and is the child if there is a socket.
func run(wait context.Context, device string, n int, socket string) (err error) {
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
	if socket != "" {
		return child(wait, ctx, n, socket)
	}
	return parent(wait, ctx, n)
}

// parent shares the numbers 0, 1, 2 and so on, and waits until the child has doubled them.
func parent(wait context.Context, ctx *cu.Context, n int) (err error) {
	buf, err := vmm.New(ctx.Device(), uint64(n)*4)
	if err != nil {
		return err
	}
	defer closing(&err, buf)
	numbers := make([]float32, n)
	for i := range numbers {
		numbers[i] = float32(i)
	}
	if err := cu.CopyToDevice(ctx, buf, numbers); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mem-map-ipc") // of mode 0700: nobody else gets in
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	srv, err := share.Listen(filepath.Join(dir, "socket"), nil)
	if err != nil {
		return err
	}
	defer closing(&err, srv)
	var lease *share.Lease // the child's; its error is the child's verdict
	offer, err := srv.Offer("numbers", buf, &share.OfferOptions{Access: cu.ReadWrite, Verdict: true, OnLease: func(l *share.Lease) { lease = l }})
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(wait, os.Args[0], "-child", srv.Path(), "-n", fmt.Sprint(n), "-device", ctx.Device().UUID().String())
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := errors.Join(cmd.Run(), offer.Close(), lease.Err()); err != nil {
		return fmt.Errorf("the child: %w", err)
	}
	if err := cu.CopyToHost(ctx, numbers, buf); err != nil {
		return err
	}
	for i, got := range numbers {
		if want := 2 * float32(i); got != want {
			return fmt.Errorf("element %d is %g, want %g", i, got, want)
		}
	}
	fmt.Printf("parent: the child has doubled all %d elements\n", n)
	return nil
}

// child maps the parent's memory, adds it to itself, and tells the parent.
func child(wait context.Context, ctx *cu.Context, n int, socket string) (err error) {
	att, err := share.Attach(wait, socket, "numbers", ctx.Device(), &share.AttachOptions{Access: cu.ReadWrite, MaxSize: uint64(n) * 4})
	if err != nil {
		return err
	}
	defer closing(&err, att)
	set, err := kernels.Load(ctx)
	if err != nil {
		return err
	}
	defer closing(&err, set)
	s, p := ctx.NullStream(), att.Ptr()
	fault := errors.Join(set.VectorAddAsync(s, p, p, p, uint64(n)), s.Synchronize(wait))
	fmt.Printf("child: mapped %d bytes, %s\n", att.Size(), att.Access())
	return errors.Join(fault, att.Report(wait, fault))
}

// closing closes c and adds the error to *err.
func closing(err *error, c io.Closer) { *err = errors.Join(*err, c.Close()) }
