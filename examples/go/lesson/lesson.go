// Package lesson is what the numbered examples share, so that each can keep to
// its subject.
package lesson

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/soft"
	"github.com/gpufd/gpufd/share"
)

// Run is a lesson's main: it opens the driver as lesson 1 does, its first device and
// that device's primary context for f, and exits with 1 if anything fails. Standard
// error says if it is the software driver.
func Run(f func(*cu.Device, *cu.Context) error) {
	if err := run(f); err != nil {
		fmt.Fprintln(os.Stderr, "lesson:", err)
		os.Exit(1)
	}
}

func run(f func(*cu.Device, *cu.Context) error) error {
	drv, err := cu.Open(cu.WithFallback(soft.Resolver))
	if err != nil {
		return err
	}
	if drv.Kind() == cu.Soft {
		fmt.Fprintln(os.Stderr, "lesson: on the", drv)
	}
	dev, err := drv.Device(0)
	if err != nil {
		return err
	}
	ctx, err := dev.PrimaryContext()
	if err != nil {
		return err
	}
	return errors.Join(f(dev, ctx), ctx.Close())
}

// Close adds the error of closing c to *err. Defer it, so that a lesson that cannot
// clean up fails.
func Close(err *error, c io.Closer) { *err = errors.Join(*err, c.Close()) }

// A Server is a share.Server with a directory of its own.
type Server struct {
	*share.Server
	dir string
}

// Listen listens at a socket in a fresh directory of mode 0700, which nobody
// else can enter.
func Listen() (*Server, error) {
	dir, err := os.MkdirTemp("", "lesson")
	if err != nil {
		return nil, err
	}
	srv, err := share.Listen(filepath.Join(dir, "socket"), nil)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &Server{srv, dir}, nil
}

// Close closes the server and removes the directory.
func (s *Server) Close() error { return errors.Join(s.Server.Close(), os.RemoveAll(s.dir)) }
