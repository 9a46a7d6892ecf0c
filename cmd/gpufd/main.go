// Command gpufd keeps GPU memory that outlives its processes, and looks after it.
package main

import (
	"fmt"
	"os"

	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/keeper"
)

// storeCommand makes this program an fd store. The keeper starts it so; nobody else has to.
const storeCommand = "fd-store"

func main() {
	if len(os.Args) == 3 && os.Args[1] == storeCommand {
		if err := keeper.RunStore(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "gpufd fd-store:", err)
			os.Exit(cli.ExitCode(err))
		}
		return
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}
