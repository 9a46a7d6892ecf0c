// Command gpufd keeps GPU memory that outlives its processes, and manages it.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/gpufd/gpufd/cmd/gpufd/internal/quiet"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/doctor"
	"github.com/gpufd/gpufd/keeper"
)

// storeCommand makes this program an fd store. The keeper starts it so.
const storeCommand = "fd-store"

// doctorChild makes this program a process of gpufd doctor, which starts it so.
const doctorChild = "doctor-child"

func main() {
	quiet.End()
	if len(os.Args) == 3 && os.Args[1] == storeCommand {
		if !filepath.IsAbs(os.Args[2]) {
			fmt.Fprintln(os.Stderr, "gpufd fd-store: want the absolute path of the keeper's socket, with .store behind it; gpufd keeper starts this by itself")
			os.Exit(cli.ExitUsage)
		}
		if err := keeper.RunStore(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "gpufd fd-store:", cli.OneLine(err))
			os.Exit(cli.ExitCode(err))
		}
		return
	}
	if len(os.Args) == 3 && os.Args[1] == doctorChild {
		if err := doctor.RunChild(func() (*cu.Driver, error) { return cli.OpenDriver(os.Args[2]) }); err != nil {
			os.Exit(cli.ExitCode(err))
		}
		return
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}
