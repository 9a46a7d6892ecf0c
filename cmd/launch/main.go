package main

import (
	"os"

	"github.com/gpufd/gpufd/internal/commands/launch"
)

func main() { os.Exit(launch.New(os.Stdout).Run(os.Args[1:], os.Stderr)) }
