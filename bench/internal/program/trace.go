package program

import (
	"errors"
	"os"
	"runtime/trace"
)

// Trace writes an execution trace of the process into PATH.WHO, until end is called.
// Without a path it does nothing.
func Trace(path, who string) (end func() error, err error) {
	if path == "" {
		return func() error { return nil }, nil
	}
	f, err := os.Create(path + "." + who)
	if err != nil {
		return nil, err
	}
	if err := trace.Start(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() error {
		trace.Stop()
		return f.Close()
	}, nil
}
