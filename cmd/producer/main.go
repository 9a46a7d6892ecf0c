package main

import (
	"os"

	"github.com/gpufd/gpufd/internal/commands/producer"
)

func main() { os.Exit(producer.Main(os.Args[1:], os.Stdout, os.Stderr)) }
