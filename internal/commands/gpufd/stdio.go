package gpufd

import (
	"context"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// standard is the path of standard input, or output.
const standard = "-"

// openInput returns standard input as a file, whose size is known: what is piped goes to a
// temporary file first, which has no name. The caller closes it.
func openInput(ctx context.Context, in *os.File) (*os.File, error) {
	if info, err := in.Stat(); err == nil && info.Mode().IsRegular() {
		if at, err := in.Seek(0, io.SeekCurrent); err == nil && at == 0 {
			return again(in)
		}
	}
	f, err := os.CreateTemp("", "gpufd-*")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := os.Remove(f.Name()); err != nil {
		return nil, err
	}
	done := make(chan error, 1)
	go func() {
		_, err := io.Copy(f, in)
		done <- err
	}()
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case err := <-done:
		if err != nil {
			return nil, fmt.Errorf("reading standard input into a file of %s (TMPDIR): %w", os.TempDir(), nameless(err))
		}
	}
	return again(f)
}

// again returns another descriptor of a file, by the name that people know.
func again(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), "standard input"), nil
}

// An asideWriter writes on a goroutine of its own, so that a signal is handled while nobody reads
// the output.
type asideWriter struct {
	own    []byte // what is written: the caller's memory may be gone when a write returns
	pieces chan []byte
	done   chan error
}

// newAsideWriter returns a writer to out. The caller ends it.
func newAsideWriter(out io.Writer) *asideWriter {
	w := &asideWriter{pieces: make(chan []byte), done: make(chan error, 1)}
	go func() {
		for b := range w.pieces {
			_, err := out.Write(b)
			w.done <- err
		}
	}()
	return w
}

// end ends the goroutine, unless a write blocks: then it ends with the program.
func (w *asideWriter) end() { close(w.pieces) }

// write waits until b is written, or ctx ends: then nothing else can be written.
func (w *asideWriter) write(ctx context.Context, b []byte) error {
	w.own = append(w.own[:0], b...)
	w.pieces <- w.own
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
