package main

import (
	"os"

	"github.com/gpufd/gpufd/internal/commands/consumer"
)

func main() { os.Exit(consumer.New(os.Stdout).Run(os.Args[1:], os.Stderr)) }
