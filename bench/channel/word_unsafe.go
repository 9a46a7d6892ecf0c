package main

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gpufd/gpufd/cu"
)

// A word is eight bytes of host memory that streams write, or wait for.
type word struct {
	mem *cu.HostMemory
	at  cu.DevicePtr
	p   *atomic.Uint64
}

func newWord(ctx *cu.Context) (w *word, err error) {
	w = &word{}
	if w.mem, err = ctx.AllocHost(4096, cu.HostPortable); err != nil {
		return nil, err
	}
	w.p = (*atomic.Uint64)(unsafe.Pointer(&w.mem.Bytes()[0]))
	w.p.Store(0)
	w.at = w.mem.Ptr()
	return w, nil
}

func (w *word) close() error { return w.mem.Close() }

// patience is how long a stream has for what it is to do.
const patience = time.Minute

// await looks without pause until the word is n or more, and says when it was.
func (w *word) await(n uint64) (at time.Time, err error) {
	begin := time.Now()
	for looks := 1; w.p.Load() < n; looks++ {
		if looks%1024 == 0 {
			if time.Since(begin) > patience {
				return at, fmt.Errorf("a stream has got to %d and not to %d within %s", w.p.Load(), n, patience)
			}
			runtime.Gosched()
		}
	}
	return time.Now(), nil
}
