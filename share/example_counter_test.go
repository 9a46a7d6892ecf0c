package share_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/soft"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/vmm"
)

// must ends the example if anything went wrong.
func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}

// A stream waits for what another process does, and goes on when that process is gone.
func ExampleCounter() {
	dev := must(must(cu.Open(cu.WithFallback(soft.Resolver))).Device(0))
	ctx := must(dev.PrimaryContext())
	control := must(vmm.New(dev, share.CounterStride))
	must(0, cu.Fill(ctx, control.Ptr(), uint8(0), control.Size()))
	dir := must(os.MkdirTemp("", "example"))
	defer os.RemoveAll(dir)
	srv := must(share.Listen(filepath.Join(dir, "socket")))
	srv.Expect("control")
	alive, gone := context.WithCancelCause(context.Background()) // as long as the peer
	onLease := share.OnLease(func(l *share.Lease) {
		go func() { <-l.Done(); gone(errors.New("the peer is gone")) }()
	})
	offered := make(chan error, 1)
	offering, stop := context.WithCancel(context.Background())
	go func() { offered <- srv.Offer(offering, "control", control, share.ReadWrite, onLease) }()
	att := must(share.Attach(offering, srv.Path(), "control", dev, share.WithAccess(share.ReadWrite)))

	s, counter := must(ctx.NewStream()), must(share.NewCounter(ctx, control, 0))
	step1, step2 := must(counter.Wait(alive, s, 1)), must(counter.Wait(alive, s, 2))
	peers, theirs := must(ctx.NewStream()), must(share.NewCounter(ctx, att.Buffer(), 0)) // mostly in a process of its own
	must(0, theirs.Signal(peers, 1))
	fmt.Println("step 1:", step1.Result())
	must(0, errors.Join(theirs.Close(), peers.Close(), att.Close()))
	fmt.Println("step 2:", step2.Result()) // the stream goes on, and nobody may rely on that
	_, err := counter.Value()
	fmt.Println("counter:", err)
	stop()
	must(0, errors.Join(counter.Close(), s.Close(), <-offered, srv.Close(), control.Close(), ctx.Close()))
	// Output:
	// step 1: <nil>
	// step 2: cu: the wait of a stream was given up: context canceled: the peer is gone
	// counter: share: counter 0 is broken: cu: the wait of a stream was given up: context canceled: the peer is gone
}
