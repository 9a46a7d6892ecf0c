package main

import (
	"os"

	"github.com/gpufd/gpufd/internal/commands/producer"
)

func main() { os.Exit(producer.New(os.Stdout).Run(os.Args[1:], os.Stderr)) }
