// Package mover is the process that copies what a keeper keeps between devices and memory of the host: it has the
// driver and the contexts that the keeper does without. The keeper starts it (package moving), and it ends with the
// keeper's end of their socket.
package mover

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/moving"
	"github.com/gpufd/gpufd/sock"
)

// Run is the main function of a mover. It serves over the socket that it inherits, and ends the process when the keeper
// has closed its end, whatever is under way: the keeper looks after the memory. open opens a driver: auto, cuda or soft.
func Run(open func(driver string) (*cu.Driver, error)) error {
	conn, err := sock.FromFile(os.NewFile(moving.FD, "socket"))
	if err != nil {
		return fmt.Errorf("a keeper starts this by itself: %w", err)
	}
	_ = os.WriteFile("/proc/self/comm", []byte("gpufd-mover"), 0) // for people alone
	m := &mover{open: open, drivers: map[string]*cu.Driver{}}
	jobs := make(chan job)
	go listen(conn, jobs)
	for j := range jobs {
		done, files := m.do(j)
		sock.DropFiles(j.files)
		err := moving.Answer(context.Background(), conn, done, files)
		sock.DropFiles(files)
		if err != nil {
			return err
		}
	}
	return nil
}

// A job is one with its descriptors.
type job struct {
	moving.Job
	files []*os.File
}

// listen receives jobs, and ends the process when the keeper has gone.
func listen(conn *sock.Conn, jobs chan<- job) {
	for {
		j, files, err := moving.ReceiveJob(context.Background(), conn)
		if err != nil {
			os.Exit(0)
		}
		jobs <- job{j, files}
	}
}

// A mover has the drivers that it has used.
type mover struct {
	open    func(string) (*cu.Driver, error)
	drivers map[string]*cu.Driver
}

func (m *mover) driver(choice string) (*cu.Driver, error) {
	if d := m.drivers[choice]; d != nil {
		return d, nil
	}
	d, err := m.open(choice)
	if err == nil {
		m.drivers[choice] = d
	}
	return d, err
}

// do does a job. Its descriptors stay the caller's; those that it returns are the caller's as well.
func (m *mover) do(j job) (d moving.Done, files []*os.File) {
	drv, err := m.driver(j.Driver)
	if err == nil {
		switch j.Op {
		case moving.OpChunk:
			d, files, err = makeChunk(drv, j)
		case moving.OpPark:
			d, err = park(drv, j)
		case moving.OpUnpark:
			d, files, err = unpark(drv, j)
		default:
			err = fmt.Errorf("there is no operation %q", j.Op)
		}
	}
	if err != nil {
		sock.DropFiles(files)
		return moving.Done{Error: explain(err)}, nil
	}
	return d, files
}

// explain returns the error that the keeper hears.
func explain(err error) *api.Error {
	code := api.Code("failed")
	if errors.Is(err, cu.ErrOutOfMemory) {
		code = api.NoRoom
	}
	return &api.Error{Code: code, Message: err.Error()}
}
