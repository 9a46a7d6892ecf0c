package main

import (
	"os"

	"github.com/gpufd/gpufd/internal/commands/launch"
)

func main() { os.Exit(launch.Main(os.Args[1:], os.Stdout, os.Stderr)) }
