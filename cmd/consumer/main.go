package main

import (
	"os"

	"github.com/gpufd/gpufd/internal/commands/consumer"
)

func main() { os.Exit(consumer.Main(os.Args[1:], os.Stdout, os.Stderr)) }
