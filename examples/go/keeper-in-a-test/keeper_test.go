package model

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/keeper/server"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/vmm"
)

// TestMain runs the tests, or the fd store of their keeper: that is a process of its own, of this program.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "fd-store" {
		if err := server.RunStore(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	cutest.Main(m)
}

// serve, which you have written, loads each version of the weights, and says which.
func serve(ctx context.Context, socket string, dev *cu.Device, loaded func(string)) error {
	c, err := dev.PrimaryContext()
	if err != nil {
		return err
	}
	defer c.Close()
	for att, err := range share.Follow(ctx, socket, "llama", dev, nil) {
		if err != nil {
			return err
		}
		text := make([]byte, att.Size())
		if err := cu.CopyToHost(c, text, att.Ptr()); err != nil {
			return err
		}
		loaded(string(text))
		<-att.Context().Done()
	}
	return nil
}

func TestKeeperRestarts(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	dev, socket := cutest.Device(t), t.TempDir()+"/keeper.sock"
	t.Cleanup(func() { check(t, endStore(socket)) })
	k := newKeeper(ctx, t, socket)
	put(ctx, t, socket, dev, "one", 0)

	versions := make(chan string, 1)
	serving, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- serve(serving, socket, dev, func(text string) { versions <- text }) }()
	expect(ctx, t, versions, "one")

	check(t, k.Close()) // what it keeps stays in the fd store
	newKeeper(ctx, t, socket)
	put(ctx, t, socket, dev, "two", 1) // the keeper still has version 1
	expect(ctx, t, versions, "two")    // and not "one" again: serve went on with its mapping

	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// newKeeper starts a keeper in this process. It ends with the test at the latest.
func newKeeper(ctx context.Context, t *testing.T, socket string) *server.Server {
	k, err := server.Open(ctx, server.Options{Socket: socket, Store: []string{"/proc/self/exe", "fd-store"}})
	check(t, err)
	t.Cleanup(func() { check(t, k.Close()) })
	return k
}

// endStore ends the fd store of a keeper that was closed.
func endStore(socket string) error {
	_, err := server.End(context.Background(), socket)
	return err
}

// put keeps a version of the weights, as gpufd put does, if the current one is that, or none if 0.
func put(ctx context.Context, t *testing.T, socket string, dev *cu.Device, text string, current uint64) {
	c := cutest.Context(t, dev)
	k, err := keeper.Dial(ctx, socket)
	check(t, err)
	defer k.Close()
	part := keeper.Part{Device: dev, Size: uint64(len(text)), Write: func(_ context.Context, b *vmm.Buffer) error {
		return cu.CopyToDevice(c, b.Ptr(), []byte(text))
	}}
	_, err = k.Put(ctx, keeper.Put{Name: "llama", Expect: &current}, part)
	check(t, err)
}

func expect(ctx context.Context, t *testing.T, versions <-chan string, want string) {
	t.Helper()
	select {
	case have := <-versions:
		if have != want {
			t.Fatalf("loaded %q, want %q", have, want)
		}
	case <-ctx.Done():
		t.Fatalf("did not load %q: %v", want, ctx.Err())
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
