package counter_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/gpufd/gpufd/counter"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/soft"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// must ends the example if anything went wrong.
func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}

// A stream waits for what another process does, and goes on when that process is killed.
func Example() {
	dev := must(must(cu.Open(cu.WithFallback(soft.Resolver))).Device(0)) // a GPU, or the software driver's device
	ctx := must(dev.PrimaryContext())
	control := must(vmm.New(dev, counter.Stride))
	must(0, cu.Fill(ctx, control, uint8(0), control.Size()))
	dir := must(os.MkdirTemp("", "example"))
	srv := must(share.Listen(filepath.Join(dir, "socket"), nil))
	defer os.RemoveAll(dir)
	alive, gone := context.WithCancelCause(context.Background()) // as long as the peer
	onLease := func(l *share.Lease) {
		go func() { <-l.Done(); gone(l.Err()) }()
	}
	must(srv.Offer("control", control, &share.OfferOptions{Access: cu.ReadWrite, Synchronized: true, OnLease: onLease}))
	other := exec.Command("/proc/self/exe")
	other.Env = append(os.Environ(), peerEnv+"="+srv.Path())
	must(0, other.Start())

	s, c := must(ctx.NewStream()), must(counter.New(ctx, control, 0))
	step1, step2 := must(c.Wait(alive, s, 1)), must(c.Wait(alive, s, 2))
	fmt.Println("step 1:", step1.Result())
	must(0, other.Process.Kill())
	err := step2.Result() // the stream goes on, and nobody may rely on that
	fmt.Println("step 2 was given up:", errors.Is(err, cu.ErrGivenUp), "because the peer was lost:", errors.Is(err, sock.ErrPeerLost))
	_, err = c.Value()
	fmt.Println("nor on the counter:", errors.Is(err, cu.ErrGivenUp))
	_ = other.Wait()
	must(0, errors.Join(c.Close(), s.Close(), srv.Close(), control.Close(), ctx.Close()))
	// Output:
	// step 1: <nil>
	// step 2 was given up: true because the peer was lost: true
	// nor on the counter: true
}

// peerEnv makes this program the peer, and says at which socket.
const peerEnv = "EXAMPLE_PEER"

func init() {
	if path := os.Getenv(peerEnv); path != "" {
		peer(path)
	}
}

// peer takes the first step, and is killed before the second.
func peer(path string) {
	dev := must(must(cu.Open(cu.WithFallback(soft.Resolver))).Device(0))
	ctx := must(dev.PrimaryContext())
	att := must(share.Attach(context.Background(), path, "control", dev, &share.AttachOptions{Access: cu.ReadWrite}))
	c := must(counter.New(ctx, att.Buffer(), 0))
	must(0, c.Signal(must(ctx.NewStream()), 1))
	<-att.Done()
	os.Exit(1) // the other was lost
}
