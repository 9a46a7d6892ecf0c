package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/internal/pattern"
)

// openFiles opens the input files, and checks that the output files can be written,
// before any kernel runs.
func (l *launcher) openFiles() error {
	for i, a := range l.args {
		err := a.openInput()
		if err == nil {
			err = a.checkOutput()
		}
		if err != nil {
			return fmt.Errorf("argument %d, %q: %w", i+1, a.text, err)
		}
	}
	return nil
}

func (l *launcher) closeFiles() error {
	var errs []error
	for _, a := range l.args {
		if a.file != nil {
			errs = append(errs, a.file.Close())
		}
	}
	return errors.Join(errs...)
}

// openInput opens the input file, if there is one.
func (a *argument) openInput() (err error) {
	if a.in == "" {
		return nil
	}
	a.file, a.size, err = cli.OpenRegular(a.in)
	if err == nil && a.size == 0 {
		err = fmt.Errorf("%s is empty", a.in)
	}
	return err
}

// checkOutput checks that the output file can be written, and changes nothing.
func (a *argument) checkOutput() error {
	if a.out == "" {
		return nil
	}
	if _, err := app.OutputPath(a.out); err != nil {
		return err
	}
	info, err := os.Stat(a.out)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return os.NewSyscallError("writing to "+filepath.Dir(a.out), unix.Access(filepath.Dir(a.out), unix.W_OK|unix.X_OK))
	case err != nil:
		return err
	case !info.Mode().IsRegular() && info.Mode()&os.ModeCharDevice == 0: // a pipe might have no reader
		return fmt.Errorf("%s is not a regular file", a.out)
	}
	return os.NewSyscallError("writing to "+a.out, unix.Access(a.out, unix.W_OK))
}

// makeBuffers allocates the buffers and fills them.
func (l *launcher) makeBuffers(ctx context.Context) (err error) {
	if l.stream, err = l.ctx.NewStream(); err != nil {
		return err
	}
	for i, a := range l.args {
		if a.value != nil {
			continue
		}
		if a.mem, err = l.ctx.Alloc(a.size); err == nil {
			err = l.fillBuffer(ctx, a)
		}
		if err != nil {
			return fmt.Errorf("argument %d, %q: %w", i+1, a.text, err)
		}
	}
	return l.stream.Synchronize(ctx)
}

func (l *launcher) fillBuffer(ctx context.Context, a *argument) error {
	if a.file == nil {
		return cu.FillAsync(l.stream, a.mem, uint8(0), a.size)
	}
	return pattern.Stream(ctx, a.size,
		func(offset uint64, b []byte) error {
			_, err := a.file.ReadAt(b, int64(offset))
			if errors.Is(err, io.EOF) {
				return fmt.Errorf("%s has become shorter than %d bytes", a.in, a.size)
			}
			return err
		},
		func(offset uint64, b []byte) error {
			l.app.Progress("reading "+a.in, offset, a.size)
			return errors.Join(cu.CopyToDeviceAsync(l.stream, a.mem.Ptr().Add(offset), b), l.stream.Synchronize(ctx))
		})
}

// writeFiles writes the buffers that have an output file.
func (l *launcher) writeFiles(ctx context.Context) error {
	for i, a := range l.args {
		if a.out == "" {
			continue
		}
		if err := l.writeFile(ctx, a); err != nil {
			return fmt.Errorf("argument %d, %q: %w", i+1, a.text, err)
		}
		l.app.Say("wrote", app.Fields{"file": a.out, "bytes": a.size}, "Wrote %d bytes to %s", a.size, a.out)
	}
	return nil
}

func (l *launcher) writeFile(ctx context.Context, a *argument) error {
	if err := a.checkOutput(); err != nil { // once more: the kernel may have taken its time
		return err
	}
	f, err := os.Create(a.out)
	if err != nil {
		return err
	}
	err = pattern.Stream(ctx, a.size,
		func(offset uint64, b []byte) error {
			return errors.Join(cu.CopyToHostAsync(l.stream, b, a.mem.Ptr().Add(offset)), l.stream.Synchronize(ctx))
		},
		func(offset uint64, b []byte) error {
			l.app.Progress("writing "+a.out, offset, a.size)
			_, err := f.Write(b)
			return err
		})
	return errors.Join(err, f.Close())
}
