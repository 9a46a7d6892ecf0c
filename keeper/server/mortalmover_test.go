package server

import (
	"os"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/internal/testenv"
)

// moverEnv names a file that says at which call of the driver movers die, counted from 1; without it they live.
const moverEnv = testenv.Prefix + "MOVER"

// openMortal opens the driver for a mover.
func openMortal(string) (*cu.Driver, error) {
	dies := deathOf(os.Getenv(moverEnv))
	var calls atomic.Int64
	return cutest.Open(cu.WithHook(func(_ sys.Call, next func() sys.CUresult) sys.CUresult {
		if calls.Add(1) == dies {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		}
		return next()
	}))
}

// deathOf reads at which call a mover dies, 0 for never.
func deathOf(path string) (call int64) {
	text, err := os.ReadFile(path)
	if err == nil {
		call, _ = strconv.ParseInt(string(text), 10, 64)
	}
	return call
}
