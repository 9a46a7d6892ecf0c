package main

import (
	"os"

	"github.com/gpufd/gpufd/internal/commands/ring"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == ring.MemberArg {
		os.Exit(ring.RunMember(os.Args[2:]))
	}
	os.Exit(ring.New(os.Stdout).Run(os.Args[1:], os.Stderr))
}
