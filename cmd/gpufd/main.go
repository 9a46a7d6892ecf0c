package main

import (
	"os"

	"github.com/gpufd/gpufd/internal/commands/gpufd"
)

func main() { os.Exit(gpufd.Main(os.Args[1:], os.Stdout, os.Stderr)) }
