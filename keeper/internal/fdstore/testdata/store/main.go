// Command store is a store and nothing else, for a test of its memory.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/gpufd/gpufd/keeper/internal/fdstore"
)

func main() {
	if err := fdstore.Run(context.Background(), os.Args[1], func() {}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
