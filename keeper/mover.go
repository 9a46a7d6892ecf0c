package keeper

import (
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/keeper/internal/mover"
)

// RunMover is the whole program of a mover: a keeper starts one to park what it keeps in memory of the host, or to
// bring it back (server.Options). open opens a driver: auto, cuda or soft. The process ends when the keeper has
// closed its end of their socket.
func RunMover(open func(driver string) (*cu.Driver, error)) error { return mover.Run(open) }
