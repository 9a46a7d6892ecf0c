package doctor

import (
	"fmt"
	"os"
	"strings"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/mapped"
)

// mappedMemory names the processes that use this kind of driver and say that they have memory of others mapped. own are
// the processes of this run.
func mappedMemory(kind cu.Kind, own []int) Row {
	var found []string
	for _, pid := range processes(append(own, os.Getpid())) {
		n, err := mapped.Of(pid)
		if err != nil || n == 0 || !usesDriver(kind, proc(pid)) { // it has ended, or may not be looked into
			continue
		}
		found = append(found, fmt.Sprintf("process %d (%s)", pid, nameOf(pid)))
	}
	if len(found) == 0 {
		return row("mapped-memory", OK, "", "found none in the processes that this user may look into")
	}
	return row("mapped-memory", Warn, "", "a checkpoint would lose what has memory of others mapped: %s", strings.Join(found, "; "))
}
