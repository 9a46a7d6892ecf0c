package cutest

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/gpufd/gpufd/cu/sys"
)

// calledEnv names a directory where tests note which driver functions succeeded,
// one symbol a line, in a file for each process.
const calledEnv = "GPUFD_CALLED"

// called holds the functions that were noted.
var called struct {
	mu   sync.Mutex
	seen map[string]bool
}

// noteCall notes a call that succeeded.
func noteCall(call sys.Call, next func() sys.CUresult) sys.CUresult {
	r := next()
	if r == sys.CUDA_SUCCESS {
		note(call.Symbol())
	}
	return r
}

// note writes symbol down at once, as a child may be killed. A test run that
// cannot take the notes it was asked for panics.
func note(symbol string) {
	called.mu.Lock()
	defer called.mu.Unlock()
	if called.seen[symbol] {
		return
	}
	if called.seen == nil {
		called.seen = map[string]bool{}
	}
	called.seen[symbol] = true
	if err := appendLine(symbol); err != nil {
		panic(fmt.Sprintf("cutest: %s: %v", calledEnv, err))
	}
}

// appendLine keeps no descriptor, which tests would count.
func appendLine(line string) error {
	name := filepath.Join(os.Getenv(calledEnv), fmt.Sprintf("%d.txt", os.Getpid()))
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = fmt.Fprintln(f, line)
	return err
}
