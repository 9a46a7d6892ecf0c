package server_test

import (
	"context"
	"errors"
	"log"
	"os"
	"os/signal"

	"github.com/gpufd/gpufd/keeper/server"
)

// A program that runs a keeper, and that is its fd store if the first argument says so. A keeper that has
// yielded goes on if its successor does not serve.
func Example() {
	if len(os.Args) == 3 && os.Args[1] == "fd-store" {
		if err := server.RunStore(os.Args[2]); err != nil {
			log.Fatal(err)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	opts := server.Options{Socket: "/run/gpufd/keeper.sock", Store: []string{"/proc/self/exe", "fd-store"}}
	k, err := server.Open(ctx, opts)
	for k != nil && err == nil {
		select {
		case <-k.Done():
		case <-ctx.Done():
		}
		why := k.Err()
		if err = k.Close(); err != nil || !errors.Is(why, server.ErrYielded) {
			break
		}
		k, err = server.TakeBack(ctx, opts) // or nil: the successor serves
	}
	if err != nil {
		log.Fatal(err)
	}
}
