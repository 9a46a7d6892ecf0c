package main

import (
	"os"

	"github.com/gpufd/gpufd/internal/commands/ring"
)

func main() { os.Exit(ring.Main(os.Args[1:], os.Stdout, os.Stderr)) }
